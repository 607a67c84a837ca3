"""Product with NVFP4 rows on the CPU. Shapes: R rows, O output rows, C columns."""

import functools

import torch

from kernels.nvfp4.decode import LANES, decode_panel
from kernels.nvfp4.records import NvFp4Rows
from kernels.panel_product import panel_product


def _nvfp4_linear(x: torch.Tensor, rows: NvFp4Rows, *, invariant: bool) -> torch.Tensor:
    """``row_scale * sum(x * (code * block_scale))``: float32 sums, the row scale last."""

    def decode(start: int, stop: int, panel: torch.Tensor) -> None:
        decode_panel(rows.codes[start:stop], rows.block_scales[start:stop], panel)

    sums = panel_product(x, rows.num_rows, LANES, decode, invariant=invariant)
    return sums.mul_(rows.row_scales.float())


nvfp4_linear = functools.partial(_nvfp4_linear, invariant=False)
nvfp4_linear_invariant = functools.partial(_nvfp4_linear, invariant=True)

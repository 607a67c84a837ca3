"""NVFP4 rows as a whole plain weight, for representations that hold one. No product uses it.

Shapes: O output rows, C columns.
"""

import torch

from kernels.nvfp4.decode import LANES, decode_panel
from kernels.nvfp4.records import NvFp4Rows
from kernels.panel_product import panel_rows


def dequantize(
    rows: NvFp4Rows, dtype: torch.dtype = torch.float32, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Weight [O, C]: code times block scale exactly, times the row scale, rounded to float32.

    bfloat16 is rounded from that float32. Scratch memory is a panel of 2 MiB and its bits.

    Args:
        rows: The packed rows.
        dtype: float32 or bfloat16.
        out: Where to write, [O, C] of ``dtype``, contiguous; a new tensor by default.

    Raises:
        ValueError: When ``out`` has another shape or dtype, or is not contiguous.
    """
    shape = (rows.num_rows, rows.num_columns)
    if out is None:
        out = torch.empty(shape, dtype=dtype)
    elif out.shape != shape or out.dtype != dtype or not out.is_contiguous():
        raise ValueError(
            f"dequantize: expected out {shape} of {dtype}, contiguous; got {tuple(out.shape)} of "
            f"{out.dtype}, strides {out.stride()}"
        )
    step = panel_rows(rows.num_columns, rows.num_rows)
    panel = torch.empty((step, rows.num_columns))
    by_word = out.view(rows.num_rows, rows.num_columns // LANES, LANES)
    for start in range(0, rows.num_rows, step):
        stop = min(start + step, rows.num_rows)
        piece = panel[: stop - start]
        decode_panel(rows.codes[start:stop], rows.block_scales[start:stop], piece)
        piece.mul_(rows.row_scales[start:stop].float().unsqueeze(1))
        lanes = piece.view(stop - start, LANES, rows.num_columns // LANES)
        by_word[start:stop].copy_(lanes.transpose(1, 2))
    return out

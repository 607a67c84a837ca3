"""Product with NVFP4 rows in C++. Shapes: R rows, O output rows, C columns."""

import torch

from kernels.native.calls import NVFP4, Flag, Kind, operation, ordered_columns
from kernels.native.library import run
from kernels.nvfp4.records import NvFp4Rows


def nvfp4_linear(x: torch.Tensor, rows: NvFp4Rows) -> torch.Tensor:
    """``row_scale * sum(block_scale * sum(x * code))``: float32 sums; float32 [R, O]."""
    x = x.contiguous()
    num_rows, columns = x.shape
    out = torch.empty((num_rows, rows.num_rows))
    flags = Flag.FLOAT_OUT
    if rows.row_scales.dtype == torch.float16:
        flags |= Flag.HALF_SCALES
    op = operation(
        Kind.LINEAR,
        x.dtype,
        weight=NVFP4,
        flags=flags,
        sizes=(columns, rows.num_rows, columns // 2),
        operands=(
            x,
            rows.codes,
            None,
            out,
            None,
            None,
            torch.empty(num_rows * ordered_columns(columns)),
            rows.block_scales,
            rows.row_scales.contiguous(),
        ),
    )
    run(op, 1, num_rows)
    return out

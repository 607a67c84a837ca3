"""Linear projection by E4M3 weights in C++. Shapes: R rows, C columns, O output rows.

A NaN code is read as 480: :func:`kernels.float8.has_nan` is for the check at load.
"""

import torch

from kernels.native.calls import TYPES, Flag, Kind, operation, ordered_columns
from kernels.native.library import run


def fp8_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``scale * sum(x * weight)``: float32 sums, the scale last, one rounding to [R, O]."""
    x = x.contiguous()
    rows, columns = x.shape
    out = torch.empty((rows, weight.shape[0]), dtype=x.dtype)
    op = operation(
        Kind.LINEAR,
        x.dtype,
        weight=TYPES[weight.dtype],
        flags=Flag.ONE_SCALE if scale.shape[0] == 1 else Flag.NONE,
        sizes=(columns, weight.shape[0], columns),
        operands=(
            x,
            weight,
            None,
            out,
            None,
            None,
            torch.empty(rows * ordered_columns(columns)),
            None,
            scale.contiguous(),
        ),
    )
    run(op, 1, rows)
    return out

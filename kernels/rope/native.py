"""Rotary position embedding in C++. Shapes: R rows, N heads, D head size, P positions."""

import torch

from kernels.native.calls import Kind, Op, Operand, operation
from kernels.native.library import run


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [R, N, D] by cos [R, 1, 1, D/2] and signed sin [R, 1, 2, D/2]."""
    rows, heads, size = x.shape
    if x.stride()[1:] != (size, 1):
        x = x.contiguous()
    out = torch.empty((rows, heads, size), dtype=x.dtype)
    # The second half of the signed sines is the table's.
    tables = cos.contiguous(), sin[:, 0, 1].contiguous()
    op = describe(x, *tables, out, heads, size, x.stride(0), x.dtype)
    run(op, 1, rows)
    return out


def describe(
    x: Operand,
    cos: torch.Tensor,
    sin: torch.Tensor,
    out: Operand,
    heads: int,
    size: int,
    row_elements: int,
    dtype: torch.dtype,
) -> Op:
    """The operation: the first ``heads`` of each row of ``x`` to ``out`` [R, N, D].

    ``cos`` and ``sin`` are tables [P, D/2], read from the step's first position on.
    """
    return operation(
        Kind.ROPE, dtype, sizes=(heads, size, row_elements), operands=(x, cos, sin, out)
    )

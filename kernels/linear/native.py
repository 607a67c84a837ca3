"""Linear projection in C++. Shapes: R rows, C columns, O output rows of the weight.

A row's bits depend on the weight and the row alone. See :mod:`kernels.native`.
"""

import torch

from kernels.native.calls import Flag, Kind, Op, Operand, operation, ordered_columns, type_of
from kernels.native.library import run


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x weight^T + bias`` of [R, C] and [O, C]: float32 sums, rounded once to [R, O]."""
    x, weight = x.contiguous(), weight.contiguous()
    rows, columns = x.shape
    out = torch.empty((rows, weight.shape[0]), dtype=x.dtype)
    ordered = torch.empty(rows * ordered_columns(columns))
    run(describe(x, weight, bias, out, ordered), 1, rows)
    return out


def describe(
    x: Operand,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: Operand,
    ordered: Operand,
    *,
    residual: Operand = None,
    total: Operand = None,
    is_widened: bool = False,
) -> Op:
    """The operation.

    Args:
        x: [R, C] of the dtype of ``weight``.
        weight: [O, C], contiguous.
        bias: [O].
        out: [R, O].
        ordered: Room for R rows of ``ordered_columns(C)`` float32.
        residual: [R, O]; ``total`` gets its rounded sum with ``out``.
        total: [R, O].
        is_widened: ``out`` is float32; what was rounded is widened again.
    """
    return operation(
        Kind.LINEAR,
        weight.dtype,
        weight=type_of(weight.dtype),
        flags=Flag.WIDENED_OUT if is_widened else Flag.NONE,
        sizes=(weight.shape[1], weight.shape[0], weight.shape[1] * weight.element_size()),
        operands=(x, weight, bias, out, residual, total, ordered),
    )

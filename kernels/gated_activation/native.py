"""SiLU-gated activation in C++. Shapes: R rows, I intermediate size."""

import torch

from kernels.native.calls import Kind, Op, Operand, operation
from kernels.native.library import run


def silu_gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of [R, 2 I], gate first, rounded after each, to [R, I]."""
    gate_up = gate_up.contiguous()
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, size), dtype=gate_up.dtype)
    run(describe(gate_up, out, size, gate_up.dtype), 1, rows)
    return out


def describe(gate_up: Operand, out: Operand, size: int, dtype: torch.dtype) -> Op:
    """The operation: [R, 2 I] to ``out`` [R, I]."""
    return operation(Kind.SILU_GATED, dtype, sizes=(size,), operands=(gate_up, out))

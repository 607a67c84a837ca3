"""Gated activations, each row alone. Shapes: R rows, I intermediate size."""

import torch

from kernels.gated_activation import cpu
from kernels.row_by_row import each_row


def silu_gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of [R, 2 I], gate first, to [R, I]."""
    return each_row(cpu.silu_gated, gate_up)


def gelu_tanh_gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``gelu_tanh(gate) * up`` of [R, 2 I], gate first, to [R, I]."""
    return each_row(cpu.gelu_tanh_gated, gate_up)

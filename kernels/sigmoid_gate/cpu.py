"""A sigmoid gate on the CPU. Shapes: R rows."""

import torch

from kernels.row_by_row import each_row


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(gate)`` of [R, ...] each: float32, rounded once; the gate may be strided."""
    return torch.sigmoid(gate.float()).mul_(x).to(x.dtype)


def sigmoid_gate_invariant(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """As :func:`sigmoid_gate`, each row alone."""
    return each_row(sigmoid_gate, x, gate)

"""A sigmoid gate, the oracle: float64, rounded once. Shapes: R rows."""

import torch


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """``x / (1 + exp(-gate))`` of [R, ...] each, in the dtype of ``x``."""
    return (x.double() / (1 + torch.exp(-gate.double()))).to(x.dtype)

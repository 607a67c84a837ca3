"""Gated activations, the oracle: float64, rounded once. Shapes: R rows, I intermediate size."""

import math

import torch


def silu_gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of [R, 2 I], gate first, to [R, I]."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def gelu_tanh_gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``gelu(gate) * up`` of [R, 2 I], gate first, to [R, I], by the approximation
    gelu(x) = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 of Hendrycks and Gimpel (2016).
    """
    gate, up = gate_up.double().chunk(2, dim=-1)
    inner = math.sqrt(2.0 / math.pi) * (gate + 0.044715 * gate**3)
    return (0.5 * gate * (1.0 + torch.tanh(inner)) * up).to(gate_up.dtype)

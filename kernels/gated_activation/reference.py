"""SiLU-gated activation, the oracle. Shapes: R rows, I intermediate size."""

import torch


def silu_gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of [R, 2 I] (gate first) in float64, rounded once to [R, I]."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)

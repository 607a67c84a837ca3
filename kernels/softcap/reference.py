"""Bounding of values by a hyperbolic tangent, the oracle."""

import torch


def softcap_(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Replace ``x`` by ``cap tanh(x / cap)``, computed in float64 and rounded once."""
    return x.copy_(torch.tanh(x.double() / cap) * cap)

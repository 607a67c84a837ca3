"""Bounding of values by a hyperbolic tangent, on the CPU."""

import torch


def softcap_(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Replace ``x`` by ``tanh(x / cap) * cap``, rounded to its dtype after each operation."""
    return x.div_(cap).tanh_().mul_(cap)

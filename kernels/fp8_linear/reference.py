"""Linear projection by E4M3 weights, the oracle. Shapes: R rows, C columns, O output rows."""

import torch


def fp8_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``x (weight * scale)^T`` of [R, C], [O, C], [O] or [1] in float64, rounded once to [R, O]."""
    return (x.double() @ (weight.double() * scale.double()[:, None]).T).to(x.dtype)

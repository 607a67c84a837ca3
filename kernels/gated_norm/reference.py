"""Root-mean-square norm with a silu gate, the oracle. Shapes: R rows, any number of groups
per row, D normed size."""

import torch


def gated_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight * silu(gate)`` over the last axis,
    in float64, rounded once.

    Args:
        x: [R, ..., D].
        gate: [R, ..., D].
        weight: [D].
        eps: Added to the mean square.

    Returns:
        [R, ..., D] in the dtype of ``x``.
    """
    wide, z = x.double(), gate.double()
    scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    return (wide * scale * weight.double() * z * torch.sigmoid(z)).to(x.dtype)

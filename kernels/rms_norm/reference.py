"""Root-mean-square norm, the oracle. Shapes: R rows, H hidden size."""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis, in float64, rounded once.

    Args:
        x: [R, H].
        weight: [H].
        eps: Added to the mean square.

    Returns:
        [R, H] in the dtype of ``x``.
    """
    wide = x.double()
    scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    return (wide * scale * weight.double()).to(x.dtype)

"""Root-mean-square norm, the oracle. Shapes: R rows, H normed size."""

import torch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, unit_offset: bool = False
) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * w`` over the last axis, in float64, rounded once.

    Args:
        x: [R, ..., H].
        weight: [H]; ``None`` for a factor of 1.
        eps: Added to the mean square.
        unit_offset: The factor w is ``1 + weight`` rather than ``weight``.

    Returns:
        The shape and dtype of ``x``.
    """
    wide = x.double()
    normed = wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    if weight is not None:
        normed = normed * (weight.double() + 1.0 if unit_offset else weight.double())
    return normed.to(x.dtype)


def add_rms_norm(
    x: torch.Tensor,
    added: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    unit_offset: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of ``x + added`` and that sum, rounded to their dtype before it is normed."""
    total = (x.double() + added.double()).to(x.dtype)
    return rms_norm(total, weight, eps, unit_offset), total

"""Rotary position embedding over half-split heads, the oracle.

Shapes: R rows, N heads, D head size. Element i of a head pairs with element i + D/2.
"""

import torch


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each head of [R, N, D] by its row's angles, in float64, rounded once.

    Args:
        x: [R, N, D].
        cos: [R, 1, 1, D/2], from :func:`kernels.rope.api.angles`.
        sin: [R, 1, 2, D/2], the first half negated, from the same.

    Returns:
        [R, N, D] in the dtype of ``x``.
    """
    first, second = x.double().chunk(2, dim=-1)
    cosine, sine = cos[:, :, 0].double(), sin[:, :, 1].double()
    rotated = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return rotated.to(x.dtype)

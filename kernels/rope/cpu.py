"""Rotary position embedding on the CPU. Shapes: R rows, N heads, D head size."""

import torch


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [R, N, D] by cos [R, 1, 1, D/2] and signed sin [R, 1, 2, D/2].

    float32 inside, rounded once to the dtype of ``x``. ``x`` may be a slice along N.
    """
    # Both halves in one operation: x * cos + swapped(x) * (-sin, sin).
    halves = x.float().view(x.shape[0], x.shape[1], 2, x.shape[2] // 2)
    rotated = (halves * cos).addcmul_(halves.flip(2), sin)
    return rotated.flatten(2).to(x.dtype)

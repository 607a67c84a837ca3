"""Bounding of values by a hyperbolic tangent, each row alone."""

import torch

from kernels.row_by_row import aligned
from kernels.softcap import cpu


def softcap_(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Replace the rows of ``x`` [R, C] by ``tanh(row / cap) * cap``, one after the other."""
    for row in x.unbind(0):
        bounded = cpu.softcap_(aligned(row), cap)
        if bounded.data_ptr() != row.data_ptr():
            row.copy_(bounded)
    return x

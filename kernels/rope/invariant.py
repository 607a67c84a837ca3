"""Rotary position embedding, each row alone. Shapes: R rows, N heads, D head size."""

import torch

from kernels.rope import cpu
from kernels.row_by_row import each_row


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [R, N, D] by cos [R, 1, 1, D/2] and signed sin [R, 1, 2, D/2]."""
    return each_row(cpu.rope, x, cos, sin)

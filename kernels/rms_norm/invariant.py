"""Root-mean-square norm, each row alone. Shapes: R rows, H normed size."""

import torch

from kernels.rms_norm import cpu
from kernels.row_by_row import each_row


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, unit_offset: bool = False
) -> torch.Tensor:
    """Norm of [R, ..., H] by [H] or nothing: float32 inside, rounded once to the dtype of ``x``."""
    return each_row(lambda row: cpu.rms_norm(row, weight, eps, unit_offset), x)


def add_rms_norm(
    x: torch.Tensor,
    added: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    unit_offset: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of ``x + added`` and that sum, rounded to their dtype before it is normed."""
    # A sum of two numbers has one result, wherever it stands.
    total = x + added
    return rms_norm(total, weight, eps, unit_offset), total

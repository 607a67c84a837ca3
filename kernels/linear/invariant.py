"""Linear projection, each row alone. Shapes: R rows, C columns, O output rows of the weight."""

import torch

from kernels.linear import cpu
from kernels.row_by_row import each_row


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x weight^T + bias`` of [R, C] and [O, C]: float32 sums, rounded once to [R, O]."""
    return each_row(lambda row: cpu.linear(row, weight, bias), x)

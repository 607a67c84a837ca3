"""Root-mean-square norm with a silu gate on the CPU. Shapes: R rows, D normed size."""

import torch
from torch.nn import functional

from kernels.row_by_row import each_row


def gated_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Norm of [R, ..., D] by [D] times silu of a gate as large: float32, rounded once."""
    normed = functional.rms_norm(x.float(), weight.shape, weight.float(), eps)
    return normed.mul_(functional.silu(gate.float())).to(x.dtype)


def gated_norm_invariant(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """As :func:`gated_norm`, each row alone."""
    return each_row(lambda row, its_gate: gated_norm(row, its_gate, weight, eps), x, gate)

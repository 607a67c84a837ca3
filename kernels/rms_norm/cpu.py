"""Root-mean-square norm on the CPU. Shapes: R rows, H hidden size."""

import torch
from torch.nn import functional


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Norm of [R, H] by [H]: float32 inside, rounded once to the dtype of ``x``."""
    return functional.rms_norm(x, weight.shape, weight, eps)

"""Root-mean-square norm on the CPU. Shapes: R rows, H normed size."""

import torch
from torch.nn import functional


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, unit_offset: bool = False
) -> torch.Tensor:
    """Norm of [R, ..., H] by [H] or nothing: float32 inside, rounded once to the dtype of ``x``."""
    if weight is not None and unit_offset:
        # The sum 1 + w needs float32: in bfloat16 it would round away the low bits of w.
        return functional.rms_norm(x.float(), x.shape[-1:], weight.float() + 1, eps).to(x.dtype)
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


def add_rms_norm(
    x: torch.Tensor,
    added: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    unit_offset: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of ``x + added`` and that sum, rounded to their dtype before it is normed."""
    total = x + added
    return rms_norm(total, weight, eps, unit_offset), total

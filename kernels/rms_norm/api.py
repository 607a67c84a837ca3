"""Root-mean-square norm by kernel set."""

from collections.abc import Callable

import torch

from kernels.kernel_sets import TORCH_CPU, TORCH_REFERENCE, choose, require
from kernels.rms_norm import cpu, reference

RmsNorm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def select(kernel_set: str) -> RmsNorm:
    """The unchecked implementation in a kernel set, for callers that check once."""
    return choose(
        "rms_norm", kernel_set, {TORCH_CPU: cpu.rms_norm, TORCH_REFERENCE: reference.rms_norm}
    )


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, kernel_set: str = TORCH_CPU
) -> torch.Tensor:
    """Norm rows of [R, H] by the weight [H]; both of one dtype, on one device."""
    implementation = select(kernel_set)
    require(x.ndim == 2, "rms_norm", "x [rows, hidden]", tuple(x.shape))
    require(weight.shape == x.shape[1:], "rms_norm", f"weight [{x.shape[1]}]", tuple(weight.shape))
    require(weight.dtype == x.dtype, "rms_norm", f"weight of {x.dtype}", weight.dtype)
    require(weight.device == x.device, "rms_norm", f"weight on {x.device}", weight.device)
    return implementation(x, weight, eps)

"""Bounding of values by a hyperbolic tangent, by kernel set."""

from collections.abc import Callable

import torch

from kernels.kernel_sets import (
    NATIVE_CPU,
    TORCH_CPU,
    TORCH_CPU_INVARIANT,
    TORCH_REFERENCE,
    choose,
    require,
)
from kernels.softcap import cpu, invariant, reference

Softcap = Callable[[torch.Tensor, float], torch.Tensor]


def select(kernel_set: str) -> Softcap:
    """The unchecked implementation in a kernel set, for callers that check once."""
    implementations: dict[str, Softcap] = {
        TORCH_CPU: cpu.softcap_,
        TORCH_CPU_INVARIANT: invariant.softcap_,
        NATIVE_CPU: invariant.softcap_,
        TORCH_REFERENCE: reference.softcap_,
    }
    return choose("softcap", kernel_set, implementations, _triton)


def _triton() -> Softcap:
    from kernels.softcap import kernel

    return kernel.softcap_


def softcap_(x: torch.Tensor, cap: float, *, kernel_set: str = TORCH_CPU) -> torch.Tensor:
    """Replace [R, C] by ``cap tanh(x / cap)``; returns ``x`` itself.

    A NaN stays a NaN, an infinity becomes a signed ``cap``.
    """
    implementation = select(kernel_set)
    require(cap > 0, "softcap", "cap above 0", cap)
    require(x.ndim == 2, "softcap", "x [rows, columns]", tuple(x.shape))
    require(x.is_floating_point(), "softcap", "floating-point x", x.dtype)
    return implementation(x, cap)

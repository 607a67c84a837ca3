"""Root-mean-square norm with a silu gate, by kernel set."""

from collections.abc import Callable

import torch

from kernels.gated_norm import cpu, reference
from kernels.kernel_sets import (
    NATIVE_CPU,
    TORCH_CPU,
    TORCH_CPU_INVARIANT,
    TORCH_REFERENCE,
    choose,
    require,
)

GatedNorm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


def select(kernel_set: str) -> GatedNorm:
    """The unchecked implementation in a kernel set, for callers that check once."""
    implementations: dict[str, GatedNorm] = {
        TORCH_CPU: cpu.gated_norm,
        TORCH_CPU_INVARIANT: cpu.gated_norm_invariant,
        NATIVE_CPU: cpu.gated_norm_invariant,
        TORCH_REFERENCE: reference.gated_norm,
    }
    return choose("gated_norm", kernel_set, implementations, _triton)


def _triton() -> GatedNorm:
    from kernels.gated_norm import kernel

    return kernel.gated_norm


def gated_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    kernel_set: str = TORCH_CPU,
) -> torch.Tensor:
    """``rms_norm(x) * weight * silu(gate)`` of x and gate [R, ..., D] by weight [D]."""
    implementation = select(kernel_set)
    require(x.ndim >= 2, "gated_norm", "x [rows, ..., size]", tuple(x.shape))
    require(gate.shape == x.shape, "gated_norm", f"gate {list(x.shape)}", tuple(gate.shape))
    require(weight.shape == x.shape[-1:], "gated_norm", f"weight [{x.shape[-1]}]", weight.shape)
    parts = (x, gate, weight)
    require(
        all(part.dtype == x.dtype and part.device == x.device for part in parts),
        "gated_norm",
        f"all {x.dtype} on {x.device}",
        [(part.dtype, part.device) for part in parts],
    )
    return implementation(x, gate, weight, eps)

"""Rotary position embedding by kernel set."""

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
from kernels.rope import cpu, invariant, native, reference

Rope = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def angles(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Shape the table rows of one step's positions for :func:`rope`, once for all layers.

    Args:
        cos: [R, D/2] float32.
        sin: [R, D/2] float32.

    Returns:
        cos [R, 1, 1, D/2] and sin [R, 1, 2, D/2] with its first half negated.
    """
    return cos[:, None, None, :], torch.stack((-sin, sin), dim=1)[:, None]


def select(kernel_set: str) -> Rope:
    """The unchecked implementation in a kernel set, for callers that check once."""
    implementations: dict[str, Rope] = {
        TORCH_CPU: cpu.rope,
        TORCH_CPU_INVARIANT: invariant.rope,
        NATIVE_CPU: native.rope,
        TORCH_REFERENCE: reference.rope,
    }
    return choose("rope", kernel_set, implementations, _triton)


def _triton() -> Rope:
    from kernels.rope import kernel

    return kernel.rope


def rope(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, kernel_set: str = TORCH_CPU
) -> torch.Tensor:
    """Rotate heads [R, N, D] by :func:`angles` of their rows; returns the dtype of ``x``."""
    implementation = select(kernel_set)
    require(
        x.ndim == 3 and x.shape[2] % 2 == 0,
        "rope",
        "x [rows, heads, even head_dim]",
        tuple(x.shape),
    )
    rows, half = x.shape[0], x.shape[2] // 2
    require(cos.shape == (rows, 1, 1, half), "rope", f"cos [{rows}, 1, 1, {half}]", cos.shape)
    require(sin.shape == (rows, 1, 2, half), "rope", f"sin [{rows}, 1, 2, {half}]", sin.shape)
    require(
        cos.dtype == sin.dtype == torch.float32, "rope", "float32 angles", (cos.dtype, sin.dtype)
    )
    require(x.device == cos.device == sin.device, "rope", f"angles on {x.device}", (cos.device,))
    return implementation(x, cos, sin)

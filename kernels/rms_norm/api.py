"""Root-mean-square norm by kernel set."""

from typing import Protocol

import torch

from kernels.kernel_sets import (
    NATIVE_CPU,
    TORCH_CPU,
    TORCH_CPU_INVARIANT,
    TORCH_REFERENCE,
    choose,
    require,
)
from kernels.rms_norm import cpu, invariant, native, reference


class RmsNorm(Protocol):
    """An unchecked implementation."""

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor | None, eps: float, unit_offset: bool = False
    ) -> torch.Tensor:
        """Norm [R, H], or [R, N, H] per head, over its last axis."""


class AddRmsNorm(Protocol):
    """An unchecked implementation."""

    def __call__(
        self,
        x: torch.Tensor,
        added: torch.Tensor,
        weight: torch.Tensor | None,
        eps: float,
        unit_offset: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of ``x + added``, rounded, and that sum."""


def select(kernel_set: str) -> RmsNorm:
    """The unchecked implementation in a kernel set, for callers that check once."""
    implementations: dict[str, RmsNorm] = {
        TORCH_CPU: cpu.rms_norm,
        TORCH_CPU_INVARIANT: invariant.rms_norm,
        NATIVE_CPU: native.rms_norm,
        TORCH_REFERENCE: reference.rms_norm,
    }
    return choose("rms_norm", kernel_set, implementations, _triton)


def select_add(kernel_set: str) -> AddRmsNorm:
    """The unchecked norm of a sum in a kernel set, as :func:`select`."""
    implementations: dict[str, AddRmsNorm] = {
        TORCH_CPU: cpu.add_rms_norm,
        TORCH_CPU_INVARIANT: invariant.add_rms_norm,
        NATIVE_CPU: native.add_rms_norm,
        TORCH_REFERENCE: reference.add_rms_norm,
    }
    return choose("rms_norm", kernel_set, implementations, _triton_add)


def _triton() -> RmsNorm:
    from kernels.rms_norm import kernel

    return kernel.rms_norm


def _triton_add() -> AddRmsNorm:
    from kernels.rms_norm import kernel

    return kernel.add_rms_norm


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    unit_offset: bool = False,
    *,
    kernel_set: str = TORCH_CPU,
) -> torch.Tensor:
    """Norm the last axis of ``x``; the result has its shape and dtype.

    Args:
        x: [R, H], or [R, N, H] for N heads of a row. R counts the rows of the step: an invariant
            set computes each ``x[r]`` alone.
        weight: [H] of the same dtype; ``None`` for a norm without one.
        eps: Added to the mean square.
        unit_offset: Multiply by ``1 + weight`` rather than ``weight``.
        kernel_set: Whose implementation.

    Raises:
        ValueError: When shapes, dtypes or devices do not fit each other.
    """
    implementation = select(kernel_set)
    _require_fit(x, weight, unit_offset)
    return implementation(x, weight, eps, unit_offset)


def add_rms_norm(
    x: torch.Tensor,
    added: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    unit_offset: bool = False,
    *,
    kernel_set: str = TORCH_CPU,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm ``x + added``, a residual and what a layer adds to it; returns the norm and the sum.

    The sum is rounded to the dtype of ``x`` before it is normed. Arguments are those of
    :func:`rms_norm`; ``added`` has the shape and dtype of ``x``.

    Raises:
        ValueError: When shapes, dtypes or devices do not fit each other.
    """
    implementation = select_add(kernel_set)
    _require_fit(x, weight, unit_offset)
    require(added.shape == x.shape, "rms_norm", f"added {list(x.shape)}", tuple(added.shape))
    require(
        added.dtype == x.dtype and added.device == x.device,
        "rms_norm",
        f"added of {x.dtype} on {x.device}",
        (added.dtype, added.device),
    )
    return implementation(x, added, weight, eps, unit_offset)


def _require_fit(x: torch.Tensor, weight: torch.Tensor | None, unit_offset: bool) -> None:
    require(
        x.ndim in (2, 3), "rms_norm", "x [rows, hidden] or [rows, heads, head_dim]", tuple(x.shape)
    )
    if weight is not None:
        size = x.shape[-1]
        require(weight.shape == (size,), "rms_norm", f"weight [{size}]", tuple(weight.shape))
        require(weight.dtype == x.dtype, "rms_norm", f"weight of {x.dtype}", weight.dtype)
        require(weight.device == x.device, "rms_norm", f"weight on {x.device}", weight.device)
    require(weight is not None or not unit_offset, "rms_norm", "a weight to offset", weight)

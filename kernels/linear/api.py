"""Linear projection by kernel set."""

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
from kernels.linear import cpu, invariant, native, reference


class Linear(Protocol):
    """An unchecked implementation."""

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Project [R, C] by [O, C] and an optional [O] to [R, O]."""


def select(kernel_set: str) -> Linear:
    """The unchecked implementation in a kernel set, for callers that check once."""
    implementations: dict[str, Linear] = {
        TORCH_CPU: cpu.linear,
        TORCH_CPU_INVARIANT: invariant.linear,
        NATIVE_CPU: native.linear,
        TORCH_REFERENCE: reference.linear,
    }
    return choose("linear", kernel_set, implementations, _triton)


def _triton() -> Linear:
    from kernels.linear import kernel

    return kernel.linear


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    kernel_set: str = TORCH_CPU,
) -> torch.Tensor:
    """``x weight^T + bias`` of x [R, C], weight [O, C], bias [O]; returns [R, O]."""
    implementation = select(kernel_set)
    require(x.ndim == 2, "linear", "x [rows, columns]", tuple(x.shape))
    require(
        weight.ndim == 2 and weight.shape[1] == x.shape[1],
        "linear",
        f"weight [outputs, {x.shape[1]}]",
        tuple(weight.shape),
    )
    parts = (x, weight) if bias is None else (x, weight, bias)
    require(
        all(part.dtype == x.dtype and part.device == x.device for part in parts),
        "linear",
        f"all {x.dtype} on {x.device}",
        [(part.dtype, part.device) for part in parts],
    )
    if bias is not None:
        require(bias.shape == weight.shape[:1], "linear", f"bias [{weight.shape[0]}]", bias.shape)
    return implementation(x, weight, bias)

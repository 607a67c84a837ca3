"""Gated activations by kernel set."""

from collections.abc import Callable

import torch

from kernels.gated_activation import cpu, invariant, native, reference
from kernels.kernel_sets import (
    NATIVE_CPU,
    TORCH_CPU,
    TORCH_CPU_INVARIANT,
    TORCH_REFERENCE,
    choose,
    require,
)

GatedActivation = Callable[[torch.Tensor], torch.Tensor]


def select_silu(kernel_set: str) -> GatedActivation:
    """The unchecked SiLU-gated activation in a kernel set, for callers that check once."""
    implementations: dict[str, GatedActivation] = {
        TORCH_CPU: cpu.silu_gated,
        TORCH_CPU_INVARIANT: invariant.silu_gated,
        NATIVE_CPU: native.silu_gated,
        TORCH_REFERENCE: reference.silu_gated,
    }
    return choose("gated_activation", kernel_set, implementations, _triton_silu)


def select_gelu_tanh(kernel_set: str) -> GatedActivation:
    """The unchecked activation gated by a tanh-approximated GELU, as :func:`select_silu`."""
    implementations: dict[str, GatedActivation] = {
        TORCH_CPU: cpu.gelu_tanh_gated,
        TORCH_CPU_INVARIANT: invariant.gelu_tanh_gated,
        NATIVE_CPU: invariant.gelu_tanh_gated,
        TORCH_REFERENCE: reference.gelu_tanh_gated,
    }
    return choose("gated_activation", kernel_set, implementations, _triton_gelu_tanh)


def _triton_silu() -> GatedActivation:
    from kernels.gated_activation import kernel

    return kernel.silu_gated


def _triton_gelu_tanh() -> GatedActivation:
    from kernels.gated_activation import kernel

    return kernel.gelu_tanh_gated


def silu_gated(gate_up: torch.Tensor, *, kernel_set: str = TORCH_CPU) -> torch.Tensor:
    """``silu(gate) * up`` of [R, 2 I], gate first; returns [R, I]."""
    implementation = select_silu(kernel_set)
    _require_pairs(gate_up)
    return implementation(gate_up)


def gelu_tanh_gated(gate_up: torch.Tensor, *, kernel_set: str = TORCH_CPU) -> torch.Tensor:
    """``gelu_tanh(gate) * up`` of [R, 2 I], gate first; returns [R, I]."""
    implementation = select_gelu_tanh(kernel_set)
    _require_pairs(gate_up)
    return implementation(gate_up)


def _require_pairs(gate_up: torch.Tensor) -> None:
    require(
        gate_up.ndim == 2 and gate_up.shape[1] % 2 == 0,
        "gated_activation",
        "gate_up [rows, 2 * intermediate]",
        tuple(gate_up.shape),
    )

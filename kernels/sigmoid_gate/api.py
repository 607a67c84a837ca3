"""A sigmoid gate by kernel set."""

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
from kernels.sigmoid_gate import cpu, reference

SigmoidGate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def select(kernel_set: str) -> SigmoidGate:
    """The unchecked implementation in a kernel set, for callers that check once."""
    implementations: dict[str, SigmoidGate] = {
        TORCH_CPU: cpu.sigmoid_gate,
        TORCH_CPU_INVARIANT: cpu.sigmoid_gate_invariant,
        NATIVE_CPU: cpu.sigmoid_gate_invariant,
        TORCH_REFERENCE: reference.sigmoid_gate,
    }
    return choose("sigmoid_gate", kernel_set, implementations, _triton)


def _triton() -> SigmoidGate:
    from kernels.sigmoid_gate import kernel

    return kernel.sigmoid_gate


def sigmoid_gate(
    x: torch.Tensor, gate: torch.Tensor, *, kernel_set: str = TORCH_CPU
) -> torch.Tensor:
    """``x * sigmoid(gate)`` of x and gate [R, ...]; returns the dtype of ``x``."""
    implementation = select(kernel_set)
    require(x.ndim >= 2, "sigmoid_gate", "x [rows, ...]", tuple(x.shape))
    require(gate.shape == x.shape, "sigmoid_gate", f"gate {list(x.shape)}", tuple(gate.shape))
    require(
        gate.dtype == x.dtype and gate.device == x.device,
        "sigmoid_gate",
        f"gate of {x.dtype} on {x.device}",
        (gate.dtype, gate.device),
    )
    return implementation(x, gate)

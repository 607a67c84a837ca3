"""SiLU-gated activation by kernel set."""

from collections.abc import Callable

import torch

from kernels.gated_activation import cpu, reference
from kernels.kernel_sets import TORCH_CPU, TORCH_REFERENCE, choose, require

GatedActivation = Callable[[torch.Tensor], torch.Tensor]


def select(kernel_set: str) -> GatedActivation:
    """The unchecked implementation in a kernel set, for callers that check once."""
    return choose(
        "gated_activation",
        kernel_set,
        {TORCH_CPU: cpu.silu_gated, TORCH_REFERENCE: reference.silu_gated},
    )


def silu_gated(gate_up: torch.Tensor, *, kernel_set: str = TORCH_CPU) -> torch.Tensor:
    """``silu(gate) * up`` of [R, 2 I], gate first; returns [R, I]."""
    implementation = select(kernel_set)
    require(
        gate_up.ndim == 2 and gate_up.shape[1] % 2 == 0,
        "gated_activation",
        "gate_up [rows, 2 * intermediate]",
        tuple(gate_up.shape),
    )
    return implementation(gate_up)

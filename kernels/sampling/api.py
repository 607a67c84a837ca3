"""Greedy choice of a token by kernel set."""

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
from kernels.sampling import cpu, native, reference

Greedy = Callable[[torch.Tensor], tuple[int, float]]


def select(kernel_set: str) -> Greedy:
    """The unchecked implementation in a kernel set, for callers that check once."""
    # A choice is of one row, and its margin one difference.
    implementations: dict[str, Greedy] = {
        TORCH_CPU: cpu.greedy,
        TORCH_CPU_INVARIANT: cpu.greedy,
        NATIVE_CPU: native.greedy,
        TORCH_REFERENCE: reference.greedy,
    }
    return choose("sampling", kernel_set, implementations, _triton)


def _triton() -> Greedy:
    from kernels.sampling import kernel

    return kernel.greedy


def greedy(logits: torch.Tensor, *, kernel_set: str = TORCH_CPU) -> tuple[int, float]:
    """The lowest index of the largest of [V], and its margin over the second largest.

    A margin is 0 on a tie, infinite for a single entry, NaN where a NaN was chosen.
    """
    implementation = select(kernel_set)
    require(logits.ndim == 1 and logits.shape[0] > 0, "sampling", "logits [V]", tuple(logits.shape))
    return implementation(logits)

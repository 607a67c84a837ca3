"""The gated delta rule with a carried state, by kernel set."""

from typing import Protocol

import torch

from kernels.delta_rule import cpu, reference
from kernels.kernel_sets import (
    NATIVE_CPU,
    TORCH_CPU,
    TORCH_CPU_INVARIANT,
    TORCH_REFERENCE,
    choose,
    require,
)


class DeltaRule(Protocol):
    """An unchecked implementation."""

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        a_log: torch.Tensor,
        dt_bias: torch.Tensor,
        state: torch.Tensor,
    ) -> torch.Tensor:
        """Advance ``state`` by the rows and return what they read, [R, V, Dv]."""


def select(kernel_set: str) -> DeltaRule:
    """The unchecked implementation in a kernel set, for callers that check once."""
    implementations: dict[str, DeltaRule] = {
        TORCH_CPU: cpu.delta_rule,
        TORCH_CPU_INVARIANT: cpu.delta_rule_recurrent,
        NATIVE_CPU: cpu.delta_rule_recurrent,
        TORCH_REFERENCE: reference.delta_rule,
    }
    return choose("delta_rule", kernel_set, implementations, _triton)


def _triton() -> DeltaRule:
    from kernels.delta_rule import kernel

    return kernel.delta_rule


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    *,
    kernel_set: str = TORCH_CPU,
) -> torch.Tensor:
    """Advance a state by rows of the gated delta rule; see the reference for the formula.

    Args:
        q: [R, K, Dk], before normalization and scale; row-strided views are fine.
        k: [R, K, Dk], before normalization.
        v: [R, V, Dv], V a multiple of K.
        a: [R, V], the decay's input.
        b: [R, V], the step size before its sigmoid.
        a_log: float32 [V].
        dt_bias: float32 [V].
        state: float32 [V, Dk, Dv], contiguous, updated in place.
        kernel_set: Whose implementation to run.

    Returns:
        [R, V, Dv] in the dtype of ``v``.
    """
    implementation = select(kernel_set)
    op = "delta_rule"
    require(k.ndim == 3 and k.shape[0] > 0, op, "k [rows, key_heads, key_size]", tuple(k.shape))
    rows, key_heads, key_size = k.shape
    require(q.shape == k.shape, op, f"q {list(k.shape)}", tuple(q.shape))
    require(
        v.ndim == 3 and v.shape[0] == rows and v.shape[1] % key_heads == 0,
        op,
        f"v [{rows}, multiple of {key_heads}, value_size]",
        tuple(v.shape),
    )
    heads = v.shape[1]
    for name, part in (("a", a), ("b", b)):
        require(part.shape == (rows, heads), op, f"{name} [{rows}, {heads}]", tuple(part.shape))
    for name, part, shape in (
        ("a_log", a_log, (heads,)),
        ("dt_bias", dt_bias, (heads,)),
        ("state", state, (heads, key_size, v.shape[2])),
    ):
        require(
            part.shape == shape and part.dtype == torch.float32,
            op,
            f"{name} float32 {list(shape)}",
            (part.dtype, tuple(part.shape)),
        )
    require(state.is_contiguous(), op, "a contiguous state", state.stride())
    devices = {part.device for part in (q, k, v, a, b, a_log, dt_bias, state)}
    require(len(devices) == 1, op, "one device", devices)
    return implementation(q, k, v, a, b, a_log, dt_bias, state)

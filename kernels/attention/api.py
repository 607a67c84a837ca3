"""Causal grouped-query attention by kernel set.

What the layers of one kind share in a step is prepared once; then each layer attends.
Shapes: R rows, T positions handed over, H query heads, K KV heads, D head size, S slots.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

import kernels.kv_cache.api as kv_cache
from kernels.attention import context, cpu, invariant, native, reference
from kernels.attention.context import AttentionContext as AttentionContext
from kernels.kernel_sets import (
    NATIVE_CPU,
    TORCH_CPU,
    TORCH_CPU_INVARIANT,
    TORCH_REFERENCE,
    choose,
    require,
)


class Prepare(Protocol):
    """Prepares one step for all layers of a kind."""

    def __call__(
        self,
        num_rows: int,
        start_position: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        first_position: int = 0,
        window: int | None = None,
    ) -> AttentionContext:
        """Rows at ``start_position``, keys from ``first_position``; checks that none is missing."""


class PrepareAt(Protocol):
    """Prepares a step of one row whose position stays on the device."""

    def __call__(
        self, position: torch.Tensor, *, num_positions: int, window: int | None = None
    ) -> AttentionContext:
        """A row at ``position`` [1] int64, over all ``num_positions`` of caches or slots."""


class Attend(Protocol):
    """Attends in one layer; unchecked."""

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        context: AttentionContext,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Attend q [R, H, D] over k, v [T, K, D]; returns [R, H * D]."""


class Paged(Protocol):
    """Attends in one layer through a slot table; unchecked."""

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        context: AttentionContext,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Attend q [R, H, D] through slots [T] over caches [S, K, D]; returns [R, H * D]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """The implementation in a kernel set."""

    prepare: Prepare
    attend: Attend
    paged: Paged
    prepare_at: PrepareAt | None = None
    """``None`` in a set that needs positions on the host."""


def select(kernel_set: str) -> Attention:
    """The unchecked implementation in a kernel set, for callers that check once."""
    parts: dict[str, tuple[Prepare, Attend]] = {
        TORCH_CPU: (cpu.prepare, cpu.attend),
        TORCH_CPU_INVARIANT: (context.prepare, invariant.attend),
        TORCH_REFERENCE: (context.prepare, reference.attend),
    }
    implementations = {
        name: Attention(prepare=step, attend=layer, paged=_gathering(name, layer))
        for name, (step, layer) in parts.items()
    }
    implementations[NATIVE_CPU] = Attention(
        prepare=context.prepare, attend=native.attend, paged=native.paged
    )
    return choose("attention", kernel_set, implementations, _triton)


def _triton() -> Attention:
    from kernels.attention import kernel

    return Attention(
        prepare=kernel.prepare,
        attend=kernel.attend,
        paged=kernel.paged,
        prepare_at=kernel.prepare_at,
    )


def _gathering(kernel_set: str, attend_layer: Attend) -> Paged:
    """Attend through a slot table by gathering first."""
    load = kv_cache.select(kernel_set).load

    def paged(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        context: AttentionContext,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        k, v = load(k_cache, slots), load(v_cache, slots)
        return attend_layer(q, k, v, context, scale, softcap)

    return paged


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    context: AttentionContext,
    scale: float,
    softcap: float | None = None,
    *,
    kernel_set: str = TORCH_CPU,
) -> torch.Tensor:
    """Attend q [R, H, D] over k, v [T, K, D]; returns [R, H * D].

    Args:
        q: This step's queries.
        k: The positions [first_position, start + R), this step's included.
        v: The same of the values.
        context: From the same set's ``prepare``.
        scale: Factor of the scores, such as 1 / sqrt(D).
        softcap: Bounds scores to c tanh(score / c) before the softmax; ``None``: unbounded.
        kernel_set: Whose implementation.

    Raises:
        ValueError: When shapes, dtypes, devices or the context do not fit each other.
    """
    implementation = select(kernel_set)
    _require_fit(q, k, v, context, softcap)
    shape = (context.num_positions, k.shape[1], q.shape[2])
    require(k.shape == shape, "attention", f"k and v {list(shape)}", tuple(k.shape))
    return implementation.attend(q, k, v, context, scale, softcap)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    context: AttentionContext,
    scale: float,
    softcap: float | None = None,
    *,
    kernel_set: str = TORCH_CPU,
) -> torch.Tensor:
    """As :func:`attend`, over k_cache, v_cache [S, K, D] through a slot table.

    Args:
        q: [R, H, D].
        k_cache: All slots' keys.
        v_cache: All slots' values.
        slots: [T] int64; entry i is the slot of position ``context.first_position`` + i.
        context: From the same set's ``prepare``.
        scale: Factor of the scores.
        softcap: Bounds the scores; ``None``: unbounded.
        kernel_set: Whose implementation.

    Raises:
        ValueError: When shapes, dtypes, devices, slots or the context do not fit each other.
    """
    implementation = select(kernel_set)
    _require_fit(q, k_cache, v_cache, context, softcap)
    kv_cache.require_slots(slots, k_cache)
    require(
        slots.shape[0] == context.num_positions,
        "attention",
        f"slots [{context.num_positions}]",
        tuple(slots.shape),
    )
    return implementation.paged(q, k_cache, v_cache, slots, context, scale, softcap)


def _require_fit(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    context: AttentionContext,
    softcap: float | None,
) -> None:
    require(q.ndim == 3, "attention", "q [rows, heads, head_dim]", tuple(q.shape))
    require(
        k.ndim == 3 and k.shape == v.shape and k.shape[2] == q.shape[2],
        "attention",
        f"k and v [positions, kv_heads, {q.shape[2]}]",
        (tuple(k.shape), tuple(v.shape)),
    )
    require(
        q.shape[1] % k.shape[1] == 0,
        "attention",
        "query heads a multiple of KV heads",
        (q.shape[1], k.shape[1]),
    )
    require(q.dtype == k.dtype == v.dtype, "attention", "one dtype", (q.dtype, k.dtype, v.dtype))
    require(
        q.device == k.device == v.device, "attention", "one device", (q.device, k.device, v.device)
    )
    require(
        q.shape[0] == context.num_rows, "attention", f"{context.num_rows} rows of q", q.shape[0]
    )
    if context.mask is not None:
        require(
            context.mask.dtype == q.dtype, "attention", f"mask of {q.dtype}", context.mask.dtype
        )
    require(softcap is None or softcap > 0, "attention", "softcap above 0", softcap)

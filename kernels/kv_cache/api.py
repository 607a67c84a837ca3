"""Keys and values through a slot table, by kernel set.

A slot is one token's place in a cache; which page it lies on is the table's business.
Shapes: R rows, T positions, K KV heads, D head size, S slots.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.kernel_sets import (
    NATIVE_CPU,
    TORCH_CPU,
    TORCH_CPU_INVARIANT,
    TORCH_REFERENCE,
    choose,
    require,
)
from kernels.kv_cache import cpu, reference
from kernels.kv_cache.cpu import contiguous_start as contiguous_start

Store = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
Load = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class KvCache:
    """The implementation in a kernel set; unchecked."""

    store: Store
    load: Load


def select(kernel_set: str) -> KvCache:
    """The unchecked implementation in a kernel set, for callers that check once."""
    fast = KvCache(store=cpu.store, load=cpu.load)
    slow = KvCache(store=reference.store, load=reference.load)
    # Copies have one result, whoever makes them.
    return choose(
        "kv_cache",
        kernel_set,
        {TORCH_CPU: fast, TORCH_CPU_INVARIANT: fast, NATIVE_CPU: fast, TORCH_REFERENCE: slow},
        _triton,
    )


def _triton() -> KvCache:
    from kernels.kv_cache import kernel

    return KvCache(store=kernel.store, load=kernel.load)


def store(
    k_rows: torch.Tensor,
    v_rows: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    kernel_set: str = TORCH_CPU,
) -> None:
    """Write k_rows, v_rows [R, K, D] to ``slots`` [R] of the caches [S, K, D].

    Raises:
        ValueError: When they do not fit, a slot is not in the cache, or one is named twice.
    """
    implementation = select(kernel_set)
    require_slots(slots, k_cache)
    rows = (slots.shape[0], *k_cache.shape[1:])
    for name, tensor, shape in (
        ("k_rows", k_rows, rows),
        ("v_rows", v_rows, rows),
        ("v_cache", v_cache, tuple(k_cache.shape)),
    ):
        require(tensor.shape == shape, "kv_cache", f"{name} {list(shape)}", tuple(tensor.shape))
        require(
            tensor.dtype == k_cache.dtype and tensor.device == k_cache.device,
            "kv_cache",
            f"{name} of {k_cache.dtype} on {k_cache.device}",
            (tensor.dtype, tensor.device),
        )
    named = slots.tolist()
    require(len(set(named)) == len(named), "kv_cache", "every slot once", named[:16])
    implementation.store(k_rows, v_rows, k_cache, v_cache, slots)


def load(cache: torch.Tensor, slots: torch.Tensor, *, kernel_set: str = TORCH_CPU) -> torch.Tensor:
    """The rows ``slots`` [T] of ``cache`` [S, K, D] as [T, K, D]; possibly a view of the cache.

    Raises:
        ValueError: When a slot is not in the cache.
    """
    implementation = select(kernel_set)
    require_slots(slots, cache)
    return implementation.load(cache, slots)


def require_slots(slots: torch.Tensor, cache: torch.Tensor) -> None:
    """Raise a ValueError unless ``slots`` [N] names slots of ``cache`` [S, K, D]."""
    require(cache.ndim == 3, "kv_cache", "cache [slots, kv_heads, head_dim]", tuple(cache.shape))
    require(
        slots.ndim == 1 and slots.dtype == torch.int64,
        "kv_cache",
        "slots [positions] of int64",
        (tuple(slots.shape), slots.dtype),
    )
    require(slots.device == cache.device, "kv_cache", f"slots on {cache.device}", slots.device)
    if slots.numel():
        low, high = int(slots.min()), int(slots.max())
        require(
            low >= 0 and high < cache.shape[0],
            "kv_cache",
            f"slots in [0, {cache.shape[0]})",
            (low, high),
        )

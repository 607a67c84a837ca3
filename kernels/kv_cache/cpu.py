"""Keys and values through a slot table on the CPU.

Shapes: R rows, T positions, K KV heads, D head size, S slots.
"""

import torch


def contiguous_start(slots: torch.Tensor) -> int | None:
    """First of ``slots`` [T], when they ascend by one; else ``None``."""
    size = slots.shape[0]
    if size == 0:
        return None
    first = int(slots[0])
    if size == 1:
        return first
    # The last slot alone refuses most tables that are not contiguous.
    if int(slots[-1]) != first + size - 1 or not bool((slots.diff() == 1).all()):
        return None
    return first


def store(
    k_rows: torch.Tensor,
    v_rows: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write [R, K, D] rows to ``slots`` [R] of caches [S, K, D]."""
    k_cache.index_copy_(0, slots, k_rows)
    v_cache.index_copy_(0, slots, v_rows)


def load(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows ``slots`` [T] of ``cache`` [S, K, D]: a view where they are contiguous, else a copy."""
    start = contiguous_start(slots)
    if start is None:
        return cache.index_select(0, slots)
    return cache[start : start + slots.shape[0]]

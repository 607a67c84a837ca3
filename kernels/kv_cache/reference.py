"""Keys and values through a slot table, the oracle: row by row.

Shapes: R rows, T positions, K KV heads, D head size, S slots.
"""

import torch


def store(
    k_rows: torch.Tensor,
    v_rows: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write [R, K, D] rows to ``slots`` [R] of caches [S, K, D]."""
    for row, slot in enumerate(slots.tolist()):
        k_cache[slot] = k_rows[row]
        v_cache[slot] = v_rows[row]


def load(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows ``slots`` [T] of ``cache`` [S, K, D], copied one by one to [T, K, D]."""
    rows = [cache[slot] for slot in slots.tolist()]
    return torch.stack(rows) if rows else cache[:0].clone()

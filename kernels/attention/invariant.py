"""Causal grouped-query attention, each row alone over exactly the positions it reads.

The shape of a row's computation depends on its position and the window alone: not on the rows
beside it, nor on whether keys before its window are still there.
"""

import torch

from kernels.attention import cpu
from kernels.attention.context import AttentionContext
from kernels.row_by_row import aligned


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    context: AttentionContext,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attend q [R, H, D] over k, v [T, K, D]; returns [R, H * D]."""
    mixed = []
    for row in range(context.num_rows):
        first, end = context.read_by(row)
        query, keys, values = _rows(q, row, row + 1), _rows(k, first, end), _rows(v, first, end)
        mixed.append(cpu.one_row(query, keys, values, scale, softcap))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _rows(x: torch.Tensor, first: int, end: int) -> torch.Tensor:
    """Rows [first, end) of ``x``, aligned; a slice of everything would only cost time."""
    return aligned(x if first == 0 and end == x.shape[0] else x[first:end])

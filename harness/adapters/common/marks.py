"""Marks that show, from the bytes alone, where nothing was ever written. Knows no family."""

from collections.abc import Sequence

import torch

_MARK = 0xFF
_EDGE_BYTES = 16
_WORD = torch.int64
_ALONE_ROWS = 1 << 13
"""Torch looks at so many edges on the calling thread alone; others may be hashing."""


def mark_unwritten(tensor: torch.Tensor) -> None:
    """Put a bit pattern that no weights have (negative NaNs) at the end of each row."""
    for edges in _edges(tensor):
        edges.fill_(-1 if edges.dtype is _WORD else _MARK)


def is_unwritten(tensor: torch.Tensor) -> bool:
    """Whether some row (the whole of a vector) still ends in nothing but marks."""
    return any(
        bool((edges == (-1 if edges.dtype is _WORD else _MARK)).all(dim=1).any())
        for edges in _edges(tensor)
        if edges.numel()
    )


def _edges(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Last bytes of each row; of all bytes, marking and looking would be the largest cost."""
    num_rows = tensor.shape[0] if tensor.ndim == 2 else 1
    rows = tensor.reshape(num_rows, -1).view(torch.uint8)
    size = _WORD.itemsize
    is_worded = rows.shape[1] >= _EDGE_BYTES and not rows.shape[1] % size
    if is_worded and not rows.storage_offset() % size:
        edges = rows.view(_WORD)[:, -_EDGE_BYTES // size :]
    else:
        edges = rows[:, -_EDGE_BYTES:]
    return edges.split(_ALONE_ROWS) if edges.is_cpu else (edges,)

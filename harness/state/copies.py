"""Copies of rows from where they were read to where they stay. Knows no plan and no model."""

import numpy as np
import torch

from harness.state.digests import tensor_bytes

_PIECE_ELEMENTS = 1 << 14
"""Torch wakes other threads for twice as many."""


def copy_rows(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy to contiguous rows of equal shape; to a device, the copy may still run afterwards.

    On the CPU the calling thread copies alone, and lets others run: they may be hashing. One that
    torch woke would go on looking for work for milliseconds, on a core that they want.
    """
    if not (target.is_cpu and source.is_cpu):
        target.copy_(source, non_blocking=True)
    elif target.dtype is source.dtype and source.is_contiguous():
        into, out = (np.frombuffer(tensor_bytes(each), dtype="u1") for each in (target, source))
        np.copyto(into, out)
    else:
        rows, from_rows = target.view(-1), source.reshape(-1)
        for at in range(0, rows.numel(), _PIECE_ELEMENTS):
            piece = slice(at, at + _PIECE_ELEMENTS)
            rows[piece].copy_(from_rows[piece])

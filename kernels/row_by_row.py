"""Rows computed one at a time, so that no row can depend on the rows beside it.

A product, a sum or a vectorized function of many rows may use another order of operations than
that of one row: for the rows left over by a tile, at the end of a vector, where threads divide
the work. Which sizes are safe differs between instruction sets. One row at a time is the same
call on the same shape whatever the number of rows, hence the same bits on any of them.
"""

from collections.abc import Callable

import torch

_ALIGNMENT_BYTES = 64
"""What the allocator gives; a row inside a larger tensor is moved to it, as libraries may choose
their instructions by address."""


def aligned(x: torch.Tensor) -> torch.Tensor:
    """``x``, or a copy of it where its address is not aligned."""
    return x if x.data_ptr() % _ALIGNMENT_BYTES == 0 else x.clone()


def each_row(op: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """Apply ``op`` to row 0 of every tensor, then to row 1, and so on; join the results.

    Args:
        op: From tensors [1, ...] to a tensor [1, ...].
        tensors: Each [R, ...], of equal R.

    Returns:
        [R, ...].
    """
    if tensors[0].shape[0] == 1:
        return op(*map(aligned, tensors))
    rows = zip(*(torch.split(x, 1) for x in tensors), strict=True)
    return torch.cat([op(*map(aligned, row)) for row in rows])

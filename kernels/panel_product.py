"""Product with a weight that is decoded panel by panel, so that it never exists whole.

Knows no weight format: a decoder fills panels. Shapes: R rows, C columns, O output rows of the
weight, L lanes.

A packed format yields elements lane by lane (all first elements of its machine words, then all
second ones, ...). A decoder may leave them in that order: column c of the weight then stands at
column ``(c % L) * (C / L) + c // L`` of the panel, and the activations are put in the same order
once per product, which is far cheaper than ordering every panel.
"""

from typing import Protocol

import torch
from torch.nn import functional

from kernels.row_by_row import each_row

_PANEL_BYTES = 2 << 20
"""Bound of a widened panel: smaller ones lose more to call overhead than they gain in the cache."""


class DecodePanel(Protocol):
    """Fills ``panel`` [stop - start, C] (float32) with weight rows [start, stop), by lanes."""

    def __call__(self, start: int, stop: int, panel: torch.Tensor) -> None:
        """Decode rows [start, stop)."""


def by_lanes(x: torch.Tensor, lanes: int) -> torch.Tensor:
    """Put the columns of [R, C] in lane order; C must be a multiple of ``lanes``."""
    rows, columns = x.shape
    return x.reshape(rows, columns // lanes, lanes).transpose(1, 2).reshape(rows, columns)


def panel_rows(columns: int, num_outputs: int) -> int:
    """Weight rows per panel; depends on the weight's shape alone, so that bits do too."""
    return min(num_outputs, max(16, _PANEL_BYTES // (4 * columns)))


def panel_product(
    x: torch.Tensor, num_outputs: int, lanes: int, decode: DecodePanel, *, invariant: bool
) -> torch.Tensor:
    """``x weight^T`` in float32 of x [R, C] and a decoded weight [O, C]; returns [R, O].

    With ``invariant`` each row is multiplied alone; a panel is decoded once either way.
    """
    rows, columns = x.shape
    wide = by_lanes(x.float(), lanes)
    out = torch.empty((rows, num_outputs))
    step = panel_rows(columns, num_outputs)
    panel = torch.empty((step, columns))
    for start in range(0, num_outputs, step):
        stop = min(start + step, num_outputs)
        piece = panel[: stop - start]
        decode(start, stop, piece)
        out[:, start:stop] = _product(wide, piece, invariant)
    return out


def _product(x: torch.Tensor, weight: torch.Tensor, invariant: bool) -> torch.Tensor:
    if invariant:
        return each_row(lambda row: functional.linear(row, weight), x)
    return functional.linear(x, weight)

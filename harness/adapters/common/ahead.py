"""Reading several tensors ahead of the one that is wanted, none over bytes still in use.

Knows a source of tensors and where each tensor goes; bytes and digests are the source's matter.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress

import torch

from harness.adapters.common.marks import mark_unwritten
from harness.realize.adapter import TensorSource

MAX_AHEAD = 16
"""Tensors begun and not yet handed out, however small they are."""

Placed = tuple[str, torch.Tensor]
"""A key, and where its tensor goes."""
_Span = tuple[int, int]
"""First address, and the one after the last."""


def read_ahead(
    source: TensorSource,
    wanted: Iterable[Placed],
    arrived: Callable[[str], None] = lambda key: None,
) -> Generator[Placed, None, None]:
    """Read every tensor into its target; hands them out in order, each when its bytes are checked.

    A target may overlap earlier ones: its reading begins when the caller has come back from what
    was read there, and ``arrived`` has returned for it. Each target is marked before, so that one
    that the source never wrote shows. Close it (:func:`contextlib.closing`), so that nothing is
    written into targets once it is left, however it is left.

    Args:
        source: Where the bytes come from.
        wanted: In the order in which they are handed out.
        arrived: Waits until nothing reads the target of a tensor that was handed out any more.
    """
    begun: deque[tuple[Placed, _Span, Callable[[], None]]] = deque()
    given: deque[tuple[str, _Span]] = deque()

    def next_given() -> Placed:
        placed, span, finish = begun.popleft()
        finish()
        given.append((placed[0], span))
        return placed

    try:
        for placed in wanted:
            span = _span(placed[1])
            while len(begun) == MAX_AHEAD or any(_overlap(span, other) for _, other, _ in begun):
                yield next_given()
            while len(given) > MAX_AHEAD or any(_overlap(span, other) for _, other in given):
                arrived(given.popleft()[0])
            mark_unwritten(placed[1])
            begun.append((placed, span, source.begin(*placed)))
        while begun:
            yield next_given()
    finally:
        for *_, finish in begun:
            # What went wrong first is what is told.
            with suppress(Exception):
                finish()


def _span(tensor: torch.Tensor) -> _Span:
    begin = tensor.data_ptr()
    return begin, begin + tensor.nbytes


def _overlap(one: _Span, other: _Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]

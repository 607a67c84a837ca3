"""Where to cut a range into stages, so that the fullest of them holds as little as possible.

Exact dynamic programming over the bytes of each layer and of the ends. Knows bytes and layers,
neither tensors nor machines.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from harness.errors import InvalidInputError
from harness.plan.layout import AdapterLayout, LayoutRequest

_HELD = ("required_residency", "mutable_authority")
"""Roles of what a stage holds for its layers, as opposed to what only a test needs."""


@dataclass(frozen=True, kw_only=True)
class RangeBytes:
    """Resident and mutable bytes of a range, by where they go when it is cut."""

    layers: tuple[int, ...]
    """Of each layer by itself."""
    first: int
    """What the first stage holds besides its layers: the embedding."""
    last: int
    """What the last stage holds besides: norm and head. A tied table counts in both."""


def range_bytes(layout: AdapterLayout, request: LayoutRequest) -> RangeBytes:
    """Bytes of each layer and of both ends, by the layout's arithmetic."""
    start, end = request.spec.start_layer, request.spec.end_layer

    def held(layer: int, *, embeddings: bool = False, head: bool = False) -> int:
        spec = replace(
            request.spec,
            start_layer=layer,
            end_layer=layer + 1,
            owns_embeddings=embeddings,
            owns_final_norm_head=head,
        )
        part = replace(request, spec=spec)
        return sum(
            tensor.num_bytes
            for design in layout.states(part)
            if design.role in _HELD and design.semantic_class != "derived_reconstructible"
            for tensor in layout.tensors(part, design.id, design.representation, ())
        )

    layers = tuple(held(layer) for layer in range(start, end))
    owns = request.spec
    return RangeBytes(
        layers=layers,
        first=held(start, embeddings=True) - layers[0] if owns.owns_embeddings else 0,
        last=held(end - 1, head=True) - layers[-1] if owns.owns_final_norm_head else 0,
    )


def balanced_cuts(held: RangeBytes, num_stages: int) -> tuple[int, ...]:
    """First layer of every stage but the first, counted from the range's first layer.

    Of all ways to cut, those whose fullest stage is least full; of these the most even one (least
    sum of squares); of these the one with the earliest cuts.

    Raises:
        InvalidInputError: When there are fewer than two stages, or more of them than layers.
    """
    num_layers = len(held.layers)
    if not 2 <= num_stages <= num_layers:
        raise InvalidInputError(
            "the range cannot be cut into so many stages",
            expected=f"2 to {num_layers}, a layer for each",
            got=str(num_stages),
        )
    sums = list(accumulate(held.layers, initial=0))

    def cost(begin: int, end: int) -> int:
        ends = (held.first if begin == 0 else 0) + (held.last if end == num_layers else 0)
        return sums[end] - sums[begin] + ends

    fullest, _ = _least(num_layers, num_stages, cost, max)

    def even(begin: int, end: int) -> int | None:
        size = cost(begin, end)
        return size * size if size <= fullest else None

    return _least(num_layers, num_stages, even, lambda one, other: one + other)[1]


_Best = dict[int, tuple[int, tuple[int, ...]]]
"""By the layer at which a stage ends: the least cost up to there, and its cuts."""


def _least(
    num_layers: int,
    num_stages: int,
    cost: Callable[[int, int], int | None],
    join: Callable[[int, int], int],
) -> tuple[int, tuple[int, ...]]:
    """The least joined cost of all ways to cut, and the first of the cuts that have it."""
    best: _Best = {0: (0, ())}
    for stage in range(num_stages):
        ended: _Best = {}
        for end in _ends(num_layers, num_stages, stage):
            for begin, (before, cuts) in best.items():
                own = cost(begin, end) if begin < end else None
                if own is not None:
                    found = (join(before, own), (*cuts, begin) if stage else cuts)
                    ended[end] = min(ended.get(end, found), found)
        best = ended
    return best[num_layers]


def _ends(num_layers: int, num_stages: int, stage: int) -> Sequence[int]:
    """Where a stage can end, with a layer for each other one."""
    if stage == num_stages - 1:
        return (num_layers,)
    return range(stage + 1, num_layers - (num_stages - 1 - stage) + 1)


def edges_of(cuts: Sequence[int], start_layer: int, end_layer: int) -> list[tuple[int, int]]:
    """Layers [start, end) of each stage."""
    return list(pairwise([start_layer, *(start_layer + cut for cut in cuts), end_layer]))

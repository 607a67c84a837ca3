"""Cuts into stages: against every other way to cut, and against bytes added up by hand."""

import random
from itertools import combinations, pairwise

import pytest

from harness.errors import InvalidInputError
from harness.plan.balance import RangeBytes, balanced_cuts, edges_of


def sizes(held: RangeBytes, cuts: tuple[int, ...]) -> list[int]:
    """Bytes of each stage, added up by hand."""
    edges = [0, *cuts, len(held.layers)]
    found = [sum(held.layers[one:other]) for one, other in pairwise(edges)]
    found[0] += held.first
    found[-1] += held.last
    return found


def best(held: RangeBytes, num_stages: int) -> tuple[int, ...]:
    """By trying every way to cut."""
    every = combinations(range(1, len(held.layers)), num_stages - 1)

    def rank(cuts: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        own = sizes(held, cuts)
        return max(own), sum(size * size for size in own), cuts

    return min(every, key=rank)


def test_cuts_are_the_best_of_all_ways_to_cut() -> None:
    numbers = random.Random(11)
    for _ in range(200):
        held = RangeBytes(
            layers=tuple(numbers.randint(0, 9) for _ in range(numbers.randint(2, 8))),
            first=numbers.choice((0, numbers.randint(0, 30))),
            last=numbers.choice((0, numbers.randint(0, 30))),
        )
        for num_stages in range(2, len(held.layers) + 1):
            assert balanced_cuts(held, num_stages) == best(held, num_stages), held


@pytest.mark.parametrize(
    ("layers", "first", "last", "num_stages", "cuts"),
    [
        ((4, 4, 4, 4), 0, 0, 2, (2,)),
        # A table on both ends leaves the middle with more layers.
        ((4, 4, 4, 4, 4, 4), 8, 8, 3, (1, 4)),
        ((4, 4, 4, 4, 4, 4), 9, 9, 3, (1, 5)),
        ((4, 4, 4, 4, 4, 4), 100, 0, 2, (1,)),
        ((1, 1, 1, 9), 0, 0, 2, (3,)),
        ((0, 0, 0, 0), 0, 0, 2, (1,)),
    ],
)
def test_where_the_ends_are_heavy_they_have_fewer_layers(
    layers: tuple[int, ...], first: int, last: int, num_stages: int, cuts: tuple[int, ...]
) -> None:
    held = RangeBytes(layers=layers, first=first, last=last)
    assert balanced_cuts(held, num_stages) == cuts


@pytest.mark.parametrize("num_stages", [-1, 0, 1, 4])
def test_every_stage_has_a_layer(num_stages: int) -> None:
    with pytest.raises(InvalidInputError, match="so many stages"):
        balanced_cuts(RangeBytes(layers=(1, 1, 1), first=0, last=0), num_stages)


def test_many_layers_take_no_time() -> None:
    held = RangeBytes(layers=tuple(range(1, 257)), first=1000, last=1000)
    cuts = balanced_cuts(held, 16)
    assert len(cuts) == 15
    # No stage is fuller than an even share and one layer.
    assert max(sizes(held, cuts)) <= (sum(held.layers) + 2000) // 16 + 256


def test_edges_count_from_the_first_layer() -> None:
    assert edges_of((2, 3), 10, 16) == [(10, 12), (12, 13), (13, 16)]

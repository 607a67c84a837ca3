"""The count of ownership against one loop over everything, on tables that nobody would make."""

from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.state.ownership import Ownership, PoolMapping, PoolTables, measure


def array(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@st.composite
def damaged_pools(draw: st.DrawFn) -> tuple[int, list[int], list[int], int, list[int], list[int]]:
    page_size, num_pages = draw(st.integers(1, 3)), draw(st.integers(2, 7))
    pages = st.integers(-1, num_pages)
    slots = st.integers(-2, num_pages * page_size + 1)
    ring = draw(st.lists(pages, min_size=num_pages - 1, max_size=num_pages - 1))
    live = draw(st.lists(st.integers(0, 1), min_size=num_pages, max_size=num_pages))
    head = draw(st.integers(0, num_pages - 2))
    return page_size, ring, live, head, draw(st.lists(slots)), draw(st.lists(slots))


@given(damaged_pools())
@settings(max_examples=150, deadline=None, database=None)
def test_every_count_is_that_of_a_loop(
    pool: tuple[int, list[int], list[int], int, list[int], list[int]],
) -> None:
    page_size, ring, live, head, held, evicted = pool
    num_pages = len(live)
    owners = [page for page in range(num_pages) if live[page]]
    placed = [
        slot
        for position, slot in enumerate(held, start=len(evicted))
        if slot % page_size == position % page_size
    ]
    uses = Counter(placed)
    can_be_owned = [slot for slot in placed if 1 <= slot // page_size < num_pages]
    alone = [slot for slot in can_be_owned if uses[slot] == 1]
    in_turn = [ring[(head + i) % len(ring)] for i in range(sum(page != 0 for page in ring))]
    report = measure(
        "p",
        page_size,
        PoolTables(free_list=array(ring), live=array(live), free_head=head),
        PoolMapping(
            num_positions=len(held) + len(evicted),
            held_slots=array(held),
            evicted_slots=array(evicted),
            num_stale=3,
        ),
    )
    assert asdict(report) == {
        "pool": "p",
        "page_size": page_size,
        "num_pages": num_pages,
        "num_live": len(owners),
        "num_available": len(
            {page for page in in_turn if 1 <= page < num_pages and not live[page]}
        ),
        "num_positions": len(held) + len(evicted),
        "num_mapped": sum(live[slot // page_size] for slot in alone),
        "num_aliased": len(held) - len(alone),
        "num_evicted": evicted.count(0),
        "num_leaked": len(set(owners) - {slot // page_size for slot in can_be_owned}),
        "num_stale": 3,
    }
    # Plain values: they become rows of a table.
    assert {type(value) for value in asdict(report).values()} == {int, str}


SOUND = Ownership(
    pool="p",
    page_size=1,
    num_pages=6,
    num_live=3,
    num_available=2,
    num_positions=5,
    num_mapped=3,
    num_aliased=0,
    num_evicted=2,
    num_leaked=0,
    num_stale=0,
)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"num_live": 4}, "pool p: num_live + num_available is 6, not 5"),
        ({"num_available": 1}, "pool p: num_live + num_available is 4, not 5"),
        ({"num_mapped": 2}, "pool p: num_mapped + num_evicted is 4, not 5"),
        ({"num_evicted": 3}, "pool p: num_mapped + num_evicted is 6, not 5"),
        ({"num_aliased": 1}, "pool p: num_aliased is 1, not 0"),
        ({"num_leaked": 1}, "pool p: num_leaked is 1, not 0"),
        ({"num_stale": 1}, "pool p: num_stale is 1, not 0"),
    ],
)
def test_every_broken_invariant_is_named(change: dict[str, int], fault: str) -> None:
    assert SOUND.faults() == ()
    assert replace(SOUND, **change).faults() == (fault,)


def test_all_broken_invariants_are_listed() -> None:
    broken = replace(SOUND, num_live=0, num_mapped=0, num_aliased=3, num_leaked=1, num_stale=9)
    assert len(broken.faults()) == 5


def test_a_slot_at_another_place_of_its_page_is_no_positions_own() -> None:
    tables = PoolTables(free_list=array([0, 2]), live=array([0, 1, 0]), free_head=1)
    mapping = PoolMapping(
        num_positions=4, held_slots=array([4, 6, 5, 7]), evicted_slots=array([]), num_stale=0
    )
    report = measure("p", 4, tables, mapping)
    assert (report.num_mapped, report.num_aliased) == (2, 2)
    # Unordered pages are as good as any: only the place in the page is a position's own.
    tables = PoolTables(free_list=array([0, 0]), live=array([0, 1, 1]), free_head=0)
    mapping = PoolMapping(
        num_positions=4, held_slots=array([4, 5, 2, 3]), evicted_slots=array([]), num_stale=0
    )
    assert measure("p", 2, tables, mapping).faults() == ()

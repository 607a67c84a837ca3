"""What a pool owns, counted in its declared tensors, and what must hold of that at any moment.

Pure counting over integer arrays; no counter of the pool is believed. Knows no torch, no model.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """One pool's ownership. Where the page size is 1, a page is a slot."""

    pool: str
    page_size: int
    """Slots of one page."""
    num_pages: int
    """All pages; page 0, the sentinel, is neither live nor available."""
    num_live: int
    """Pages marked live."""
    num_available: int
    """Distinct pages that the free list will hand out in turn: not live, not page 0."""
    num_positions: int
    """Positions [0, frontier) of the pool's owner."""
    num_mapped: int
    """Positions, not evicted, that translate to a slot of a live page which no other one has."""
    num_aliased: int
    """Positions, not evicted, that share a slot, or translate to one that is not theirs to own."""
    num_evicted: int
    """Positions evicted, and translating to no slot."""
    num_leaked: int
    """Live pages that no position translates to."""
    num_stale: int
    """Entries of the mapping that are set and belong to no position held."""

    def faults(self) -> tuple[str, ...]:
        """Every broken invariant in words, in a fixed order; empty where all hold."""
        wanted = (
            ("num_live + num_available", self.num_live + self.num_available, self.num_pages - 1),
            ("num_mapped + num_evicted", self.num_mapped + self.num_evicted, self.num_positions),
            ("num_aliased", self.num_aliased, 0),
            ("num_leaked", self.num_leaked, 0),
            ("num_stale", self.num_stale, 0),
        )
        return tuple(
            f"pool {self.pool}: {name} is {got}, not {expected}"
            for name, got, expected in wanted
            if got != expected
        )


@dataclass(frozen=True, kw_only=True)
class PoolTables:
    """The values of one pool's allocator tensors."""

    free_list: IntArray
    live: IntArray
    free_head: int


@dataclass(frozen=True, kw_only=True)
class PoolMapping:
    """What the owner's positions translate to in one pool."""

    num_positions: int
    held_slots: IntArray
    """Slots of the positions that are not evicted, in order."""
    evicted_slots: IntArray
    """Slots of the positions that are; 0 where the eviction was done."""
    num_stale: int
    """Entries of the mapping that are set and belong to no position held."""


def measure(pool: str, page_size: int, tables: PoolTables, mapping: PoolMapping) -> Ownership:
    """Count one pool's ownership in its tensors' values."""
    slots, is_live = mapping.held_slots, tables.live != 0
    if page_size > 1:
        # A position's place in its page is its own modulo the page size; elsewhere it owns nothing.
        first = mapping.evicted_slots.size
        places = np.arange(first, first + slots.size) % page_size
        slots = np.where(slots % page_size == places, slots, 0)
    num_pages = is_live.size
    ownable = inside(slots, page_size, num_pages * page_size)
    is_slot_used = np.zeros(num_pages * page_size, dtype=np.bool_)
    is_slot_used[ownable] = True
    is_page_used = is_slot_used
    if page_size > 1:
        is_page_used = np.zeros(num_pages, dtype=np.bool_)
        is_page_used[ownable // page_size] = True
    owned = ownable
    if np.count_nonzero(is_slot_used) < ownable.size:
        owned = ownable[np.bincount(ownable)[ownable] == 1]
    owned_pages = owned if page_size == 1 else owned // page_size
    return Ownership(
        pool=pool,
        page_size=page_size,
        num_pages=num_pages,
        num_live=int(np.count_nonzero(is_live)),
        num_available=_count_available(tables, is_live),
        num_positions=mapping.num_positions,
        num_mapped=int(np.count_nonzero(is_live[owned_pages])),
        num_aliased=slots.size - owned.size,
        num_evicted=mapping.evicted_slots.size - int(np.count_nonzero(mapping.evicted_slots)),
        num_leaked=int(np.count_nonzero(is_live & ~is_page_used)),
        num_stale=mapping.num_stale,
    )


def inside(values: IntArray, begin: int, end: int) -> IntArray:
    """Those of ``values`` that lie in [begin, end), in order."""
    # Usually all do, and then no mask and no copy is made.
    if not values.size or (values.min() >= begin and values.max() < end):
        return values
    return values[(values >= begin) & (values < end)]


def _count_available(tables: PoolTables, is_live: npt.NDArray[np.bool_]) -> int:
    ring, head = tables.free_list, tables.free_head
    is_available = np.zeros(is_live.size, dtype=np.bool_)
    end = head + int(np.count_nonzero(ring))
    for in_turn in (ring[head:end], ring[: max(end - ring.size, 0)]):
        is_available[inside(in_turn, 1, is_live.size)] = True
    return int(np.count_nonzero(is_available & ~is_live))

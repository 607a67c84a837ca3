"""Faulty wrappers: each breaks one rule of the life of a session, and the ownership report says so.

The checker below never looks inside: it runs an ordinary life, as an executor would, and reads the
reports. It finds nothing in a sound session, and something in each faulty one.
"""

import contextlib
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hybrid_model import evicting, geometry_of, session_over

from harness.errors import HarnessError
from harness.state.errors import CapacityError, UnmappedError
from harness.state.geometry import HybridGeometry, Kind
from harness.state.hybrid import HybridPool
from harness.state.pages import PagePool
from harness.state.session import PagedSession

CHUNK_ROWS = 5


class BlindPool(HybridPool):
    """Translates whatever the tables say, as a runtime without checks would."""

    def slots(self, kind: Kind, begin: int, end: int) -> torch.Tensor:
        return self.translate(kind, begin, end)


class SkippedPool(BlindPool):
    """Never allocates for the layers with a window: every one of their slots is 0."""

    def map_positions(self, begin: int, end: int) -> None:
        swa, self._swa = self._swa, None
        super().map_positions(begin, end)
        self._swa = swa


class NothingMappedPool(BlindPool):
    """Never allocates at all."""

    def map_positions(self, begin: int, end: int) -> None:
        pass


class DelayedPool(BlindPool):
    """Maps the rows of a step only when the next step is covered."""

    late: tuple[int, int] | None = None

    def map_positions(self, begin: int, end: int) -> None:
        if self.late is not None:
            super().map_positions(*self.late)
        self.late = begin, end


class SentinelPool(BlindPool):
    """Owns pages, and maps every position of the window layers to the sentinel all the same."""

    def map_positions(self, begin: int, end: int) -> None:
        super().map_positions(begin, end)
        self.tensors["full_to_swa"].zero_()


class SharedSlotPool(BlindPool):
    """Gives a position the slot of the position before it."""

    def map_positions(self, begin: int, end: int) -> None:
        super().map_positions(begin, end)
        table = self.tensors["page_table"]
        if begin:
            table[begin] = table[begin - 1]


class StalePool(BlindPool):
    """A reset that leaves the mapping of the life before."""

    def rebuild(self) -> None:
        super().rebuild()
        if self.kept is not None:
            self.tensors["full_to_swa"].copy_(self.kept)

    kept: torch.Tensor | None = None

    def map_positions(self, begin: int, end: int) -> None:
        super().map_positions(begin, end)
        self.kept = self.tensors["full_to_swa"].clone()


class LeakyResetPool(BlindPool):
    """A reset that forgets the mapping and not who owned the pages."""

    def rebuild(self) -> None:
        super().rebuild()
        if self.kept is not None:
            self.tensors["swa.live"].copy_(self.kept)

    kept: torch.Tensor | None = None

    def map_positions(self, begin: int, end: int) -> None:
        super().map_positions(begin, end)
        self.kept = self.tensors["swa.live"].clone()


class LeakyEvictionPool(BlindPool):
    """Unmaps evicted positions and never frees their pages."""

    def evict_positions(self, frontier: int) -> None:
        with mock.patch.object(PagePool, "free_pages", return_value=0):
            super().evict_positions(frontier)


class LostPagesPool(BlindPool):
    """Frees pages into nowhere: they are neither live nor available."""

    def evict_positions(self, frontier: int) -> None:
        before = self.tensors["swa.free_list"].clone()
        super().evict_positions(frontier)
        self.tensors["swa.free_list"].copy_(before)


class EagerEvictionPool(BlindPool):
    """Evicts positions and keeps them mapped to pages that others get."""

    def evict_positions(self, frontier: int) -> None:
        before = self.tensors["full_to_swa"].clone()
        super().evict_positions(frontier)
        self.tensors["full_to_swa"].copy_(before)


class UnboundedPages(PagePool):
    """An allocator that starts over when nothing is free."""

    def require(self, num_pages: int) -> None:
        pass

    def allocate_pages(self, num_pages: int) -> Any:
        if num_pages <= self.num_available:
            return super().allocate_pages(num_pages)
        return np.arange(num_pages, dtype=np.int64) % (self.num_pages - 1) + 1


class UnboundedPool(BlindPool):
    """Ignores exhaustion."""

    def __init__(self, geometry: HybridGeometry, tensors: Any) -> None:
        with mock.patch("harness.state.hybrid.PagePool", UnboundedPages):
            super().__init__(geometry, tensors)


class AheadSession(PagedSession):
    """Moves its frontier before it has what the positions need."""

    def cover(self, start_position: int, num_rows: int) -> None:
        end = start_position + num_rows
        try:
            super().cover(start_position, num_rows)
        finally:
            self._frontier = max(self._frontier, end)


class TwiceSession(PagedSession):
    """Allocates an owned range again."""

    def cover(self, start_position: int, num_rows: int) -> None:
        self._frontier = start_position
        self.tensors["page_table"][start_position:] = 0
        super().cover(start_position, num_rows)


class ZeroLastSession(PagedSession):
    """Rebuilds the allocator and then zeroes it."""

    def reset(self) -> None:
        self.pool.rebuild()
        for tensor in self.tensors.values():
            tensor.zero_()
        self._frontier = 0


class GatedSession(PagedSession):
    """Sound, unless the state has a certain name."""

    def cover(self, start_position: int, num_rows: int) -> None:
        if self.logical_state_id == "state.long-prompt":
            self._frontier = max(self._frontier, start_position + num_rows)
        else:
            super().cover(start_position, num_rows)


POOLS = {
    "skipped allocation": (SkippedPool, "swa: num_aliased"),
    "no allocation at all": (NothingMappedPool, "full: num_aliased"),
    "delayed allocation": (DelayedPool, "full: num_aliased"),
    "aliased to slot 0": (SentinelPool, "swa: num_aliased"),
    "aliased to a neighbour": (SharedSlotPool, "full: num_aliased"),
    "stale mapping after reset": (StalePool, "swa: num_stale"),
    "ownership leaked by reset": (LeakyResetPool, "swa: num_leaked"),
    "ownership leaked by eviction": (LeakyEvictionPool, "swa: num_leaked"),
    "pages lost by eviction": (LostPagesPool, "swa: num_live + num_available"),
    "evicted and still mapped": (EagerEvictionPool, "swa: num_mapped + num_evicted"),
    "exhaustion ignored": (UnboundedPool, "num_aliased"),
}
SESSIONS = {
    "frontier ahead of its pages": (AheadSession, "num_aliased"),
    "allocated twice": (TwiceSession, "num_leaked"),
    "zeroed after the rebuild": (ZeroLastSession, "num_live + num_available"),
}


def faults_of(session: PagedSession) -> list[str]:
    return [fault for report in session.ownership() for fault in report.faults()]


def live(session: PagedSession) -> list[str]:
    """Two lives with a reset between, each ending in a step too large; every fault reported.

    A wrapper may also be stopped by a check of what it did not break; the reports until then count.
    """
    found = faults_of(session)
    with contextlib.suppress(HarnessError):
        for _ in range(2):
            for start, rows in (
                (0, CHUNK_ROWS),
                (3, 2),
                (5, CHUNK_ROWS),
                (10, 1),
                (11, 1),
                (3, 2),
                (12, 1),
            ):
                session.cover(start, rows)
                found += faults_of(session)
                session.end_step()
                found += faults_of(session)
            with contextlib.suppress(CapacityError):
                session.cover(session.frontier, 3 * CHUNK_ROWS)
            found += faults_of(session)
            session.reset()
            found += faults_of(session)
    return found


@pytest.mark.parametrize("page_size", [1, 2])
@pytest.mark.parametrize("geometry", [geometry_of, evicting])
def test_a_sound_session_shows_no_fault(geometry: Any, page_size: int) -> None:
    assert live(session_over(geometry(page_size=page_size))) == []
    assert live(session_over(geometry(page_size=page_size), pool=BlindPool)) == []


@pytest.mark.parametrize("page_size", [1, 2])
@pytest.mark.parametrize("control", POOLS)
def test_a_faulty_pool_is_caught(control: str, page_size: int) -> None:
    pool, sign = POOLS[control]
    found = live(session_over(evicting(page_size=page_size), pool=pool))
    assert any(sign in fault for fault in found), found


@pytest.mark.parametrize("page_size", [1, 2])
@pytest.mark.parametrize("control", SESSIONS)
def test_a_faulty_session_is_caught(control: str, page_size: int) -> None:
    session, sign = SESSIONS[control]
    found = live(session_over(evicting(page_size=page_size), session=session))
    assert any(sign in fault for fault in found), found


def test_a_fault_that_hides_behind_a_name_is_caught_under_that_name() -> None:
    names = ("state.kv", "state.long-prompt", "state.other")
    found = {
        name: live(session_over(evicting(), session=GatedSession, name=name)) for name in names
    }
    assert [name for name in names if found[name]] == ["state.long-prompt"]


def test_skipped_allocation_is_seen_at_the_first_step_and_every_later_one() -> None:
    """The race on slot 0 needs a second chunk to change an output; the report does not."""
    session = session_over(geometry_of(), pool=SkippedPool)
    for start in range(0, 20, 5):
        session.cover(start, 5)
        full, swa = session.ownership()
        assert full.faults() == ()
        assert (swa.num_aliased, swa.num_mapped, swa.num_live) == (start + 5, 0, 0)
        assert session.pool.slots("swa", 0, start + 5).tolist() == [0] * (start + 5)
        # Without the blindness of the wrapper nothing would have been read or written there.
        with pytest.raises(UnmappedError, match="position 0 has no slot in pool swa"):
            HybridPool.slots(session.pool, "swa", 0, start + 5)

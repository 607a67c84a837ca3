"""Random lives of a session against the dictionary model; everything is compared after each act."""

import pytest
import torch
from hybrid_model import (
    FULL_GROUP,
    SWA_GROUP,
    ExhaustedError,
    Model,
    evicting,
    free_lists,
    geometry_of,
    session_over,
    store,
    tables,
    tensors_of,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from harness.errors import InvalidInputError
from harness.state.errors import CapacityError, GapError, UnmappedError
from harness.state.geometry import HybridGeometry
from harness.state.snapshot import copy_declared

GEOMETRIES = {
    "plain": lambda size, window: geometry_of(page_size=size, window=window),
    "evicting": lambda size, window: evicting(page_size=size, window=window),
    "full only": lambda size, _: geometry_of(page_size=size, swa=None, window=None),
    "swa only": lambda size, window: evicting(page_size=size, window=window, full=None),
}


class SessionLife(RuleBasedStateMachine):
    """One session over one pool, and its model."""

    page_size = 1

    @initialize(
        kind=st.sampled_from(sorted(GEOMETRIES)),
        window=st.integers(1, 20),
        is_mirrored=st.booleans(),
    )
    def begin(self, kind: str, window: int, is_mirrored: bool) -> None:
        self.geometry: HybridGeometry = GEOMETRIES[kind](self.page_size, window)
        self.session = session_over(self.geometry, is_mirrored=is_mirrored)
        self.model = Model(self.geometry)
        self.snapshot: dict[str, torch.Tensor] | None = None
        self.tag = 1000.0

    @rule(rows=st.integers(1, 9), back=st.integers(0, 4))
    def cover(self, rows: int, back: int) -> None:
        start = max(0, self.model.frontier - back)
        end = start + rows
        frontier = self.model.frontier
        if end > self.geometry.max_positions:
            with pytest.raises(CapacityError):
                self.session.cover(start, rows)
            return
        if end > frontier and self.model.reads_evicted(start):
            with pytest.raises(UnmappedError):
                self.session.cover(start, rows)
            return
        try:
            self.model.cover(end)
        except ExhaustedError:
            with pytest.raises(CapacityError):
                self.session.cover(start, rows)
            return
        self.session.cover(start, rows)
        if end > frontier:
            store(self.session, frontier, end - frontier, self.tag)
            self.model.stored |= {p: p + self.tag for p in range(frontier, end)}

    @rule()
    def decode(self) -> None:
        self.cover(1, 0)
        self.end_step()

    @rule()
    def end_step(self) -> None:
        self.session.end_step()
        self.model.end_step()

    @rule(beyond=st.integers(1, 50), rows=st.integers(1, 9))
    def leave_a_gap(self, beyond: int, rows: int) -> None:
        with pytest.raises(GapError):
            self.session.cover(self.model.frontier + beyond, rows)

    @rule()
    def take_a_snapshot(self) -> None:
        self.snapshot = tensors_of(self.geometry)
        copy_declared(self.session.tensors, self.snapshot)
        self.model_then = self.model.copy()

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def restore(self) -> None:
        copy_declared(self.snapshot, self.session.tensors)
        self.session.restore(self.model_then.frontier)
        self.model = self.model_then.copy()

    @precondition(lambda self: self.snapshot is not None)
    @rule(off=st.sampled_from([-1, 1]))
    def restore_other_positions(self, off: int) -> None:
        copy_declared(self.snapshot, self.session.tensors)
        with pytest.raises(InvalidInputError):
            self.session.restore(self.model_then.frontier + off)
        self.restore()

    @rule()
    def reset(self) -> None:
        self.session.reset()
        assert not any(t.any() for n, t in self.session.tensors.items() if n[-2:] in (".k", ".v"))
        self.model = Model(self.geometry)
        self.tag += 1000

    @invariant()
    def tables_are_the_models(self) -> None:
        assert self.session.frontier == self.model.frontier
        found = tables(self.session)
        expected = self.model.tables()
        assert {name: found[name] for name in expected} == expected
        assert free_lists(self.session) == self.model.free_lists()

    @invariant()
    def ownership_is_the_models(self) -> None:
        reports = {report.pool: report for report in self.session.ownership()}
        assert [fault for report in reports.values() for fault in report.faults()] == []
        pools = {"full": (self.model.full, self.model.full_free, self.model.num_full, 0)}
        if self.geometry.swa:
            swa = (self.model.swa, self.model.swa_free, self.model.num_swa, self.model.evicted)
            pools["swa"] = swa
        assert reports.keys() == pools.keys()
        for name, (owned, free, num_pages, evicted) in pools.items():
            report = reports[name]
            assert report.num_live + report.num_available == report.num_pages - 1 == num_pages
            assert (report.num_live, report.num_available) == (len(owned), len(free))
            assert report.num_positions == self.model.frontier
            assert report.num_mapped == self.model.frontier - evicted
            assert report.num_evicted == evicted

    @invariant()
    def every_position_reads_its_own(self) -> None:
        frontier, evicted = self.model.frontier, self.model.evicted
        for kind, begin in (("full", 0), ("swa", evicted)):
            group = self.geometry.group(kind)
            if group is None:
                continue
            assert group in (FULL_GROUP, SWA_GROUP)
            slots = self.session.pool.slots(kind, begin, frontier)
            assert slots.dtype == torch.int64
            expected = [self.model.stored[p] for p in range(begin, frontier)]
            keys, values = self.session.pool.keys(kind), self.session.pool.values(kind)
            assert keys[-1, slots, -1, -1].tolist() == expected
            assert (-values[0, slots, 0, 0]).tolist() == expected
        for kind, position in (("full", frontier), ("swa", frontier), ("swa", evicted - 1)):
            with pytest.raises(UnmappedError):
                self.session.pool.slots(kind, position, position + 1)

    @invariant()
    def a_window_is_whole(self) -> None:
        # What the next row will read is there, however much was evicted.
        if self.geometry.swa and self.model.frontier:
            begin = max(0, self.model.frontier - self.geometry.window + 1)
            self.session.pool.slots("swa", begin, self.model.frontier)

    @invariant()
    def a_snapshot_stands(self) -> None:
        if self.snapshot is not None:
            assert self.snapshot["page_table"].tolist() == self.model_then.tables()["page_table"]


@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_a_session_is_what_the_model_says(page_size: int) -> None:
    machine = type("Life", (SessionLife,), {"page_size": page_size})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=30, stateful_step_count=25, deadline=None, database=None),
    )

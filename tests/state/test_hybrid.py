from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np
import pytest
import torch
from hybrid_model import evicting, geometry_of, session_over, store, tables, tensors_of

from harness.errors import InvalidInputError
from harness.state.errors import CapacityError, DamagedStateError, UnmappedError
from harness.state.geometry import HybridGeometry
from harness.state.hybrid import HybridPool
from harness.state.session import PagedSession

TOTAL = 37
CHUNKINGS: dict[str, Callable[[], Iterator[int]]] = {
    "single rows": lambda: cycle([1]),
    "sevens": lambda: cycle([7]),
    "sixteens": lambda: cycle([16]),
    "uneven": lambda: cycle([5, 1, 16, 3]),
}


def run_in(geometry: HybridGeometry, chunking: str, most: int = TOTAL) -> PagedSession:
    session = session_over(geometry)
    for rows in CHUNKINGS[chunking]():
        start = session.frontier
        if start == TOTAL:
            return session
        rows = min(rows, most, TOTAL - start)
        session.cover(start, rows)
        store(session, start, rows, tag=100.0)
        session.end_step()
    raise AssertionError


@pytest.mark.parametrize("chunking", CHUNKINGS)
@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_any_chunking_ends_in_the_bytes_of_one_allocation(page_size: int, chunking: str) -> None:
    geometry = geometry_of(page_size=page_size)
    whole = session_over(geometry)
    whole.cover(0, TOTAL)
    store(whole, 0, TOTAL, tag=100.0)
    chunked = run_in(geometry, chunking)
    assert tables(chunked) == tables(whole)
    assert all(torch.equal(chunked.tensors[n], t) for n, t in whole.tensors.items())


@pytest.mark.parametrize("chunking", CHUNKINGS)
@pytest.mark.parametrize("page_size", [1, 2, 16])
@pytest.mark.parametrize("window", [1, 8, 15])
def test_what_was_evicted_depends_on_the_frontier_alone(
    page_size: int, chunking: str, window: int
) -> None:
    geometry = evicting(page_size=page_size, window=window)
    one_by_one, chunked = run_in(geometry, "single rows"), run_in(geometry, chunking, most=5)
    assert tables(chunked) == tables(one_by_one)
    assert all(torch.equal(chunked.tensors[n], t) for n, t in one_by_one.tensors.items())


@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_a_page_is_evicted_with_the_last_window_that_holds_one_of_its_positions(
    page_size: int,
) -> None:
    window = 8
    session = session_over(evicting(page_size=page_size, window=window))
    while session.frontier < TOTAL:
        session.cover(session.frontier, 1)
        session.end_step()
        first_read = max(0, session.frontier - window + 1)
        first_kept = first_read - first_read % page_size
        session.pool.slots("swa", first_kept, session.frontier)
        session.pool.slots("full", 0, session.frontier)
        if first_kept:
            with pytest.raises(UnmappedError, match=f"position {first_kept - 1} has no slot"):
                session.pool.slots("swa", first_kept - 1, session.frontier)


def test_slots_go_through_both_tables_and_never_below_the_first_page() -> None:
    session = session_over(evicting(page_size=2, window=4, chunk_rows=2))
    for start in range(0, 20, 2):
        session.cover(start, 2)
        session.end_step()
    pool, full_to_swa = session.pool, session.tensors["full_to_swa"]
    full = pool.slots("full", 15, 20)
    assert full.tolist() == session.tensors["page_table"][15:20].tolist()
    swa = pool.slots("swa", 17, 20)
    assert swa.tolist() == [int(full_to_swa[slot]) for slot in full[2:]]
    # Freed pages came round again: the pool is smaller than what was covered.
    assert session.tensors["swa.live"].shape[0] == 4
    assert min(full.min(), swa.min()) >= 2
    assert full.is_contiguous()
    assert swa.is_contiguous()
    assert pool.slots("swa", 20, 20).tolist() == []


@pytest.mark.parametrize("kind", ["full", "swa"])
@pytest.mark.parametrize(("begin", "end"), [(0, 6), (5, 6), (-1, 2), (3, 2), (0, 41), (40, 41)])
def test_unmapped_positions_are_never_translated(kind: str, begin: int, end: int) -> None:
    session = session_over(geometry_of())
    session.cover(0, 5)
    with pytest.raises(UnmappedError):
        session.pool.slots(kind, begin, end)


def test_a_pool_that_is_not_there_translates_nothing() -> None:
    session = session_over(geometry_of(swa=None, window=None))
    session.cover(0, 5)
    with pytest.raises(UnmappedError, match="no pool swa"):
        session.pool.slots("swa", 0, 5)
    session.end_step()
    assert [report.pool for report in session.ownership()] == ["full"]
    assert session.pool.slots("full", 0, 5).tolist() == [1, 2, 3, 4, 5]


def test_exhaustion_of_one_pool_takes_nothing_from_the_other() -> None:
    session = session_over(evicting(window=8, chunk_rows=5))
    session.cover(0, 12)
    before = tables(session)
    with pytest.raises(CapacityError, match="pool swa"):
        session.cover(12, 1)
    assert tables(session) == before
    session.end_step()
    session.cover(12, 5)


def test_a_position_is_mapped_once() -> None:
    session = session_over(geometry_of())
    session.cover(0, 5)
    with pytest.raises(DamagedStateError, match="mapped"):
        session.pool.map_positions(4, 6)
    assert [report.faults() for report in session.ownership()] == [(), ()]


def test_binding_lists_every_tensor_that_does_not_fit() -> None:
    geometry = geometry_of()
    tensors = tensors_of(geometry)
    del tensors["swa.k"]
    tensors["full.v"] = tensors["full.v"].bfloat16()
    tensors["page_table"] = tensors["page_table"][:-1]
    tensors["more"] = torch.zeros(1)
    tensors["swa.v"] = tensors["swa.v"].transpose(2, 3).contiguous().transpose(2, 3)
    with pytest.raises(InvalidInputError) as error:
        HybridPool(geometry, tensors)
    for name in ("swa.k: absent", "full.v", "page_table", "more", "swa.v: not contiguous"):
        assert name in str(error.value)
    assert "full.k" not in str(error.value)


def test_binding_needs_no_clean_tables() -> None:
    geometry = geometry_of()
    used, new = session_over(geometry), session_over(geometry)
    used.cover(0, 9)
    pool = HybridPool(geometry, used.tensors)
    assert tables(used) == tables(new)
    pool.map_positions(0, 3)
    assert pool.slots("swa", 0, 3).tolist() == [1, 2, 3]


def test_the_host_keeps_what_a_device_has() -> None:
    """With mirrored tables every change reaches the tensors, and every restore the mirrors."""
    plain, mirrored = (
        session_over(evicting(page_size=2), is_mirrored=mirrored) for mirrored in (False, True)
    )
    for session in (plain, mirrored):
        for start in range(0, 30, 3):
            session.cover(start, 3)
            session.end_step()
    assert tables(mirrored) == tables(plain)
    assert mirrored.ownership() == plain.ownership()
    saved = {name: tensor.clone() for name, tensor in mirrored.tensors.items()}
    mirrored.reset()
    for name, tensor in saved.items():
        mirrored.tensors[name].copy_(tensor)
    mirrored.restore(30)
    for session in (plain, mirrored):
        session.cover(30, 4)
    assert tables(mirrored) == tables(plain)
    # A mirror is what a step is checked by, and not what is reported: the tensors are.
    mirrored.tensors["full_to_swa"].zero_()
    assert not mirrored.pool.slots("swa", 30, 34).any()
    assert [bool(report.faults()) for report in mirrored.ownership()] == [False, True]


@pytest.mark.gpu
def test_a_device_has_the_same_mapping() -> None:
    host, device = (session_over(evicting(page_size=2), device=name) for name in ("cpu", "cuda"))
    for session in (host, device):
        for start in range(0, 30, 3):
            session.cover(start, 3)
            session.end_step()
    assert tables(device) == tables(host)
    assert device.ownership() == host.ownership()
    slots = device.pool.slots("swa", 25, 30)
    assert slots.device.type == "cuda"
    assert slots.tolist() == host.pool.slots("swa", 25, 30).tolist()
    device.reset()
    assert device.tensors["full.free_list"].tolist() == np.arange(1, 21).tolist()

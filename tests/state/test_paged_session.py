from collections.abc import Callable
from typing import Any

import pytest
import torch
from hybrid_model import copies, evicting, geometry_of, session_over, store, tables, tensors_of

from harness.errors import ExitCode, InvalidInputError
from harness.state.digests import tensor_digest
from harness.state.errors import CapacityError, DamagedStateError, GapError
from harness.state.geometry import HybridGeometry
from harness.state.session import PagedSession, Session
from harness.state.snapshot import copy_declared

Tensors = dict[str, torch.Tensor]


def digests(tensors: Any) -> dict[str, str]:
    return {name: tensor_digest(tensor) for name, tensor in tensors.items()}


def test_is_a_session_over_the_declared_tensors() -> None:
    geometry = geometry_of()
    session = session_over(geometry, name="state.kv")
    assert isinstance(session, Session)
    assert (session.lineage, session.logical_state_id) == ("state.kv@epoch-1", "state.kv")
    assert session.capacity_positions == 40
    assert list(session.tensors) == [spec.name for spec in geometry.tensors()]


def test_covers_exactly_what_is_missing() -> None:
    session = session_over(geometry_of())
    session.cover(0, 3)
    first = tables(session)
    session.cover(0, 3)
    session.cover(1, 1)
    assert tables(session) == first
    session.cover(2, 3)
    assert session.frontier == 5
    assert session.pool.slots("full", 0, 5).tolist() == [1, 2, 3, 4, 5]
    assert tables(session)["swa.free_list"][:6] == [0, 0, 0, 0, 0, 6]


@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_a_session_of_full_capacity_fits(page_size: int) -> None:
    session = session_over(geometry_of(page_size=page_size))
    session.cover(0, 40)
    assert [report.num_mapped for report in session.ownership()] == [40, 40]
    assert [report.faults() for report in session.ownership()] == [(), ()]
    with pytest.raises(CapacityError):
        session.cover(40, 1)


@pytest.mark.parametrize(
    ("cover", "error", "code"),
    [
        (lambda s: s.cover(6, 1), GapError, ExitCode.INVALID_INPUT),
        (lambda s: s.cover(5, 36), CapacityError, ExitCode.NOT_EVALUABLE),
        (lambda s: s.cover(5, 8), CapacityError, ExitCode.NOT_EVALUABLE),
        (lambda s: s.cover(0, 0), InvalidInputError, ExitCode.INVALID_INPUT),
    ],
)
def test_fails_closed(
    cover: Callable[[PagedSession], None], error: type[InvalidInputError], code: ExitCode
) -> None:
    session = session_over(evicting(window=8, chunk_rows=5))
    session.cover(0, 5)
    before = copies(session)
    with pytest.raises(error) as caught:
        cover(session)
    assert caught.value.exit_code is code
    assert session.frontier == 5
    assert digests(session.tensors) == digests(before)
    assert session.pool.slots("swa", 0, 5).tolist() == [1, 2, 3, 4, 5]
    session.cover(5, 7)


@pytest.mark.parametrize("geometry", [geometry_of(), evicting(), geometry_of(page_size=16)])
def test_reset_is_as_new_and_may_be_repeated(geometry: HybridGeometry) -> None:
    session, new = session_over(geometry), session_over(geometry)
    for rows in (5, 3, 4):
        for start in range(0, 4 * rows, rows):
            session.cover(start, rows)
            store(session, start, rows, tag=50.0)
            session.end_step()
        for _ in range(2):
            session.reset()
            assert session.frontier == 0
            assert digests(session.tensors) == digests(new.tensors)
    session.cover(0, 5)
    assert session.pool.slots("swa", 0, 5).tolist() == session.pool.slots("full", 0, 5).tolist()


def test_reset_reaches_the_bytes_of_keys_and_values() -> None:
    """Buffers inside a pool are declared, counted and zeroed like its tables."""
    geometry = geometry_of()
    session = session_over(geometry)
    session.cover(0, 40)
    for tensor in session.tensors.values():
        tensor.fill_(7)
    session.reset()
    buffers = {name: t for name, t in session.tensors.items() if name[-2:] in (".k", ".v")}
    assert sum(t.nbytes for t in buffers.values()) == 2 * 41 * (2 * 1 * 6 + 3 * 2 * 4) * 4
    assert not any(tensor.any() for tensor in buffers.values())


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_a_restored_state_lives_on_as_it_would_have(is_mirrored: bool) -> None:
    geometry = evicting(page_size=2)
    session = session_over(geometry, is_mirrored=is_mirrored)
    snapshot = tensors_of(geometry)
    for start in range(0, 20, 4):
        session.cover(start, 4)
        store(session, start, 4, tag=50.0)
        session.end_step()
    copy_declared(session.tensors, snapshot)
    frozen = digests(snapshot)
    ends = []
    for _ in range(3):
        copy_declared(snapshot, session.tensors)
        session.restore(20)
        assert digests(session.tensors) == frozen
        for start in range(20, 32, 3):
            session.cover(start, 3)
            store(session, start, 3, tag=90.0)
            session.end_step()
        ends.append(digests(session.tensors))
        if len(ends) == 1:
            session.reset()
    assert ends[0] == ends[1] == ends[2] != frozen
    assert digests(snapshot) == frozen


def damage_page_table(tensors: Tensors) -> None:
    tensors["page_table"][2] = 0


def damage_alias(tensors: Tensors) -> None:
    tensors["full_to_swa"][3] = tensors["full_to_swa"][4]


def damage_beyond(tensors: Tensors) -> None:
    tensors["page_table"][30] = 25


def damage_stale_swa(tensors: Tensors) -> None:
    tensors["full_to_swa"][33] = 25


def damage_live(tensors: Tensors) -> None:
    tensors["swa.live"][9] = 0


def damage_free_list(tensors: Tensors) -> None:
    tensors["full.free_list"][20] = 22


def damage_head(tensors: Tensors) -> None:
    tensors["swa.free_head"][0] = 12


def damage_head_range(tensors: Tensors) -> None:
    tensors["swa.free_head"][0] = 400


def damage_geometry(tensors: Tensors) -> None:
    tensors["geometry"][3] += 1


def damage_range(tensors: Tensors) -> None:
    tensors["page_table"][2] = -7


def damage_range_above(tensors: Tensors) -> None:
    tensors["page_table"][2] = 4000


def damage_eviction(tensors: Tensors) -> None:
    tensors["swa.evicted_end"][0] += 1


@pytest.mark.parametrize(
    "damage", [value for name, value in sorted(globals().items()) if name.startswith("damage_")]
)
def test_restore_refuses_tensors_that_say_anything_else(damage: Callable[[Tensors], None]) -> None:
    session = session_over(evicting(window=24, chunk_rows=16))
    session.cover(0, 10)
    session.end_step()
    good = copies(session)
    damage(session.tensors)
    with pytest.raises(DamagedStateError):
        session.restore(10)
    # Nothing is held, and nothing can be, until the state is sound again.
    assert session.frontier == 0
    with pytest.raises(DamagedStateError, match="is damaged"):
        session.cover(0, 1)
    with pytest.raises(GapError):
        session.cover(10, 1)
    for name, tensor in good.items():
        session.tensors[name].copy_(tensor)
    session.restore(10)
    session.cover(10, 2)
    damage(session.tensors)
    with pytest.raises(DamagedStateError):
        session.restore(10)
    session.reset()
    session.cover(0, 10)
    assert [report.faults() for report in session.ownership()] == [(), ()]


@pytest.mark.parametrize(("held", "evicted"), [(0, 4), (0, -4), (1, 4), (40, 36), (40, 31)])
def test_restore_refuses_an_eviction_that_never_was(held: int, evicted: int) -> None:
    """Also where no position shows it: later ones would never be evicted, or counted as evicted."""
    session = session_over(evicting(window=8, page_size=4))
    for start in range(0, held, 5):
        session.cover(start, min(5, held - start))
        session.end_step()
    session.tensors["swa.evicted_end"][0] = evicted
    with pytest.raises(DamagedStateError, match=r"swa\.evicted_end is"):
        session.restore(held)


@pytest.mark.parametrize("positions", [0, 9, 11, 40])
def test_restore_refuses_other_positions(positions: int) -> None:
    session = session_over(geometry_of())
    session.cover(0, 10)
    with pytest.raises(DamagedStateError, match=r"positions \[0, "):
        session.restore(positions)
    session.restore(10)
    assert session.frontier == 10


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (geometry_of(window=8), geometry_of(window=9)),
        (evicting(window=8, chunk_rows=6), evicting(window=9, chunk_rows=5)),
        (geometry_of(max_positions=4, page_size=1), geometry_of(max_positions=4, page_size=2)),
    ],
)
def test_a_snapshot_of_another_geometry_is_refused(
    ours: HybridGeometry, theirs: HybridGeometry
) -> None:
    """The first two pairs have tensors of equal names, dtypes and shapes."""
    session, other = session_over(ours), session_over(theirs)
    session.cover(0, 3)
    before = digests(session.tensors)
    snapshot = tensors_of(theirs)
    copy_declared(other.tensors, snapshot)
    for source, target in (
        (snapshot, session.tensors),
        (other.tensors, session.tensors),
        (session.tensors, snapshot),
    ):
        with pytest.raises(InvalidInputError, match="different geometry"):
            copy_declared(source, target)
    assert digests(session.tensors) == before


def test_a_snapshot_that_was_never_taken_is_refused() -> None:
    session = session_over(geometry_of())
    session.cover(0, 3)
    before = digests(session.tensors)
    with pytest.raises(InvalidInputError, match="never written"):
        copy_declared(tensors_of(geometry_of()), session.tensors)
    assert digests(session.tensors) == before


def test_a_name_changes_nothing() -> None:
    found = []
    for name in ("state.kv", "swa_unallocated", "bench", ""):
        session = session_over(evicting(), name=name)
        for start in range(0, 40, 5):
            session.cover(start, 5)
            session.end_step()
        found.append((tables(session), session.ownership()))
    assert all(each == found[0] for each in found)

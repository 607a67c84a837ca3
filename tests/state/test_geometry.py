import subprocess
import sys
from typing import Any

import pytest
from hybrid_model import (
    FULL_GROUP,
    SWA_GROUP,
    evicting,
    free_lists,
    geometry_of,
    session_over,
    tensors_of,
)

from harness.errors import InvalidInputError
from harness.state.errors import CapacityError
from harness.state.geometry import HybridGeometry, KvGroup
from harness.state.snapshot import copy_declared


def shapes(geometry: HybridGeometry) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {spec.name: (spec.dtype, spec.shape) for spec in geometry.tensors()}


def test_every_tensor_and_its_shape() -> None:
    assert shapes(geometry_of(max_positions=40, page_size=16, dtype="bfloat16")) == {
        "geometry": ("int64", (6,)),
        "page_table": ("int64", (40,)),
        "full_to_swa": ("int64", (64,)),
        "full.free_list": ("int64", (3,)),
        "full.live": ("int64", (4,)),
        "full.free_head": ("int64", (1,)),
        "swa.free_list": ("int64", (3,)),
        "swa.live": ("int64", (4,)),
        "swa.free_head": ("int64", (1,)),
        "full.k": ("bfloat16", (2, 64, 1, 6)),
        "full.v": ("bfloat16", (2, 64, 1, 6)),
        "swa.k": ("bfloat16", (3, 64, 2, 4)),
        "swa.v": ("bfloat16", (3, 64, 2, 4)),
    }


@pytest.mark.parametrize(("page_size", "slots"), [(1, 41), (2, 42), (3, 45), (16, 64), (64, 128)])
def test_all_positions_and_a_sentinel_page(page_size: int, slots: int) -> None:
    geometry = geometry_of(max_positions=40, page_size=page_size)
    assert geometry.num_slots("full") == geometry.num_slots("swa") == slots
    assert geometry.num_slots("full") == geometry.num_pages("full") * page_size


def test_an_evicting_pool_is_bounded_by_window_and_chunk() -> None:
    long = evicting(max_positions=100_000, window=512, chunk_rows=64)
    assert long.num_slots("swa") == 512 + 64
    assert long.num_slots("full") == 100_001
    assert shapes(long)["swa.evicted_end"] == ("int64", (1,))
    # Never more than all positions need.
    assert evicting(max_positions=40, window=512, chunk_rows=64).num_slots("swa") == 41


@pytest.mark.parametrize("page_size", [1, 2, 3, 16])
@pytest.mark.parametrize("window", [1, 8, 17])
@pytest.mark.parametrize("chunk_rows", [1, 5, 16])
def test_the_bound_suffices_and_one_page_less_does_not(
    page_size: int, window: int, chunk_rows: int
) -> None:
    """A whole chunk fits at every frontier, and at some frontier no page is left then."""
    geometry = evicting(
        max_positions=window + chunk_rows + 3 * page_size,
        page_size=page_size,
        window=window,
        chunk_rows=chunk_rows,
    )
    session, before = session_over(geometry), tensors_of(geometry)
    fewest = geometry.num_pages("swa")
    while session.frontier + chunk_rows <= geometry.max_positions:
        frontier = session.frontier
        copy_declared(session.tensors, before)
        session.cover(frontier, chunk_rows)
        fewest = min(fewest, len(free_lists(session)["swa"]))
        copy_declared(before, session.tensors)
        session.restore(frontier)
        session.cover(frontier, 1)
        session.end_step()
    assert fewest == 0


def test_one_row_more_than_planned_may_not_fit() -> None:
    session = session_over(evicting(window=8, chunk_rows=5))
    session.cover(0, 8)
    session.end_step()
    with pytest.raises(CapacityError, match="pool swa is exhausted"):
        session.cover(8, 6)
    session.cover(8, 5)


@pytest.mark.parametrize("page_size", [1, 16])
def test_without_swa_layers_nothing_of_it_exists(page_size: int) -> None:
    geometry = geometry_of(page_size=page_size, swa=None, window=None)
    assert not [name for name in shapes(geometry) if "swa" in name]
    assert geometry.num_slots("swa") == 0
    # A policy that concerns other layers changes nothing.
    policy = evicting(page_size=page_size, swa=None, window=None)
    assert shapes(policy) == shapes(geometry)
    assert policy.header() == geometry.header()
    assert not policy.evicts


def test_without_full_layers_the_address_space_stays() -> None:
    geometry = geometry_of(full=None)
    found = shapes(geometry)
    assert "full.k" not in found
    assert {"page_table", "full.free_list", "swa.k"} <= found.keys()


def test_a_row_reads_as_many_positions_as_the_window_has() -> None:
    geometry = geometry_of(window=8)
    assert [geometry.window_begin(p) for p in (0, 6, 7, 8, 39)] == [0, 0, 0, 1, 32]
    assert geometry_of(window=1).window_begin(5) == 5


def test_the_header_tells_apart_what_shapes_do_not() -> None:
    geometries = [
        geometry_of(),
        geometry_of(window=9),
        evicting(window=40, chunk_rows=40),
        evicting(window=40, chunk_rows=39),
        geometry_of(max_positions=32, page_size=2),
        geometry_of(max_positions=31, page_size=2),
        geometry_of(swa=None, window=None),
    ]
    assert len({geometry.header() for geometry in geometries}) == len(geometries)
    assert all(any(geometry.header()) for geometry in geometries)
    # Without eviction the rows of a step leave no trace in the state.
    assert geometry_of(chunk_rows=7) != geometry_of(chunk_rows=64)
    assert geometry_of(chunk_rows=7).header() == geometry_of(chunk_rows=64).header()


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"max_positions": 0, "page_size": True}, ["max_positions is 0", "page_size is True"]),
        ({"page_size": 2.0, "window": -1}, ["page_size is 2.0", "window is -1"]),
        ({"max_positions": 1 << 60}, ["max_positions is"]),
        ({"dtype": "float7"}, ["dtype 'float7'"]),
        ({"swa": None}, ["one is there without the other"]),
        ({"window": None}, ["one is there without the other"]),
        ({"swa": None, "window": None, "full": None}, ["there are no layers"]),
        ({"eviction_policy": "lru/1", "chunk_rows": 1}, ["'lru/1' is not one of evict-outside"]),
        ({"eviction_policy": "evict-outside-window/1"}, ["chunk_rows is absent"]),
        ({"chunk_rows": 0}, ["chunk_rows is 0"]),
        (
            {"full": KvGroup(num_layers=0, num_kv_heads=1, head_dim=-4)},
            ["full.head_dim is -4", "full.num_layers is 0"],
        ),
    ],
)
def test_refuses_by_name_and_lists_every_fault(changes: dict[str, Any], faults: list[str]) -> None:
    with pytest.raises(InvalidInputError) as error:
        geometry_of(**changes)
    assert all(fault in str(error.value) for fault in faults)


def test_groups_may_differ_in_every_dimension() -> None:
    geometry = geometry_of()
    assert (geometry.group("full"), geometry.group("swa")) == (FULL_GROUP, SWA_GROUP)
    assert FULL_GROUP.head_dim != SWA_GROUP.head_dim


def test_arithmetic_needs_no_torch() -> None:
    script = "import sys, harness.state.geometry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0

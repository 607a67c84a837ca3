import gc
import itertools
import mmap
from collections.abc import Callable

import numpy as np
import pytest
import torch

from harness.errors import ResourceError
from harness.plan.layout import TensorSpec
from harness.state.arena import ALIGNMENT_BYTES, Arena, Memory
from harness.team import Team

SPECS = [
    TensorSpec(name="a", dtype="bfloat16", shape=(3, 5)),
    TensorSpec(name="b", dtype="float32", shape=(7,)),
    TensorSpec(name="c", dtype="uint8", shape=(1,)),
]


def memory(capacity_bytes: int = 1 << 20) -> Memory:
    return Memory(resource_id="ram", kind="system-ram", capacity_bytes=capacity_bytes)


def mapped_at(arena: Arena) -> list[str]:
    with open("/proc/self/maps") as maps:
        return [line for line in maps if line.startswith(f"{arena.address:x}-")]


def anonymous_bytes() -> int:
    """Of the whole process: a private mapping may have been merged with its neighbours."""
    with open("/proc/self/smaps_rollup") as rollup:
        return next(int(line.split()[1]) for line in rollup if line.startswith("Anonymous:")) << 10


def test_throwaway_state_takes_pages_where_it_is_written_only() -> None:
    kept, size = memory(1 << 25), 1 << 24
    passing = kept.throwaway().allocate(
        "passing", [TensorSpec(name="w", dtype="uint8", shape=(size,))]
    )
    begin = anonymous_bytes()
    assert not passing.tensors["w"].any()
    read = anonymous_bytes()
    passing.tensors["w"].fill_(1)
    written = anonymous_bytes()
    assert read - begin < size // 4
    assert written - read > size // 4 * 3
    assert (passing.release(), kept.allocated_bytes) == (0, 0)
    (line,) = mapped_at(kept.allocate("real", SPECS))
    assert line.split()[1] == "rw-s"


def test_requested_and_allocated_are_two_columns() -> None:
    arena = memory().allocate("x", SPECS)
    assert arena.requested_bytes == 3 * 5 * 2 + 7 * 4 + 1
    assert arena.allocated_bytes == mmap.PAGESIZE


def test_tensors_are_zeroed_aligned_and_apart() -> None:
    arena = memory().allocate("x", SPECS)
    spans = []
    for spec in SPECS:
        tensor = arena.tensors[spec.name]
        assert tensor.shape == spec.shape
        assert str(tensor.dtype) == f"torch.{spec.dtype}"
        assert not tensor.any()
        assert tensor.data_ptr() % ALIGNMENT_BYTES == 0
        assert arena.contains(tensor.data_ptr())
        spans.append((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes))
    spans.sort()
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_each_arena_has_its_own_entry_in_proc() -> None:
    home = memory()
    first, second = home.allocate("x", SPECS), home.allocate("y", SPECS)
    for arena in (first, second):
        (line,) = mapped_at(arena)
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        assert end - begin == arena.allocated_bytes
        assert "rw-s" in line


def test_release_unmaps_and_gives_the_bytes_back() -> None:
    home = memory()
    arena = home.allocate("x", SPECS)
    weak = arena.weak_tensors()
    assert home.allocated_bytes == arena.allocated_bytes
    assert arena.release() == 0
    assert not mapped_at(arena)
    assert home.allocated_bytes == 0
    assert home.arenas == []
    assert home.peak_allocated_bytes == arena.allocated_bytes
    assert all(reference() is None for reference in weak)
    assert arena.release() == 0


@pytest.mark.parametrize("holder", ["tensor", "view", "numpy", "storage"])
def test_release_reports_what_something_still_holds(holder: str) -> None:
    home = memory()
    arena = home.allocate("x", SPECS)
    hold: dict[str, Callable[[torch.Tensor], object]] = {
        "tensor": lambda tensor: tensor,
        "view": lambda tensor: tensor[2:],
        "numpy": lambda tensor: tensor.numpy(),
        "storage": lambda tensor: tensor.untyped_storage(),
    }
    kept = hold[holder](arena.tensors["b"])
    assert arena.release() == arena.allocated_bytes
    assert mapped_at(arena)
    assert home.allocated_bytes == arena.allocated_bytes
    del kept
    gc.collect()
    assert arena.release() == 0
    assert not mapped_at(arena)


def test_exhaustion_takes_nothing() -> None:
    home = memory(capacity_bytes=mmap.PAGESIZE)
    home.allocate("x", SPECS)
    with pytest.raises(ResourceError, match="exhausted"):
        home.allocate("y", SPECS)
    assert home.allocated_bytes == mmap.PAGESIZE
    assert len(home.arenas) == 1


def test_requested_bytes_count_a_storage_once() -> None:
    arena = memory().allocate("x", SPECS)
    before = arena.requested_bytes
    alias = arena.tensors["a"].view(-1)
    assert arena.requested_bytes == before
    assert alias.data_ptr() == arena.tensors["a"].data_ptr()


def test_writes_reach_the_mapping() -> None:
    arena = memory().allocate("x", SPECS)
    arena.tensors["b"].copy_(torch.arange(7, dtype=torch.float32))
    assert np.array_equal(arena.tensors["b"].numpy(), np.arange(7, dtype=np.float32))
    assert not arena.tensors["a"].any()
    assert not arena.tensors["c"].any()


def test_an_empty_tensor_has_a_place_and_no_bytes() -> None:
    arena = memory().allocate("x", [TensorSpec(name="e", dtype="float32", shape=(0, 4))])
    assert arena.tensors["e"].shape == (0, 4)
    assert arena.requested_bytes == 0
    assert arena.release() == 0


def resident_kib(arena: Arena) -> int:
    with open("/proc/self/smaps") as smaps:
        lines = iter(smaps)
        next(line for line in lines if line.startswith(f"{arena.address:x}-"))
        return int(next(line for line in lines if line.startswith("Rss:")).split()[1])


@pytest.mark.parametrize("num_threads", [0, 2])
def test_touched_pages_are_there_and_hold_what_they_held(num_threads: int) -> None:
    spec = TensorSpec(name="a", dtype="uint8", shape=((9 << 20) + 5,))
    arena = memory(10 << 20).allocate("x", [spec])
    arena.tensors["a"][-1] = 7
    with Team(num_threads) as team:
        arena.touch(team, 5 << 20)
        assert resident_kib(arena) == (5 << 10) + 4
        arena.touch(team)
        assert resident_kib(arena) == arena.allocated_bytes >> 10
        assert int(arena.tensors["a"].sum()) == 7
        assert arena.release() == 0
        arena.touch(team)  # of a block that is gone, nothing

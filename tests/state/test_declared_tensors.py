"""No tensor that a pool owns is undeclared: the process is walked, not the pool's own list."""

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hybrid_model import evicting, geometry_of

from harness.state.accounting import TensorAccounting
from harness.state.arena import Arena, Memory
from harness.state.geometry import HybridGeometry
from harness.state.hybrid import HybridPool
from harness.state.session import PagedSession
from harness.state.snapshot import copy_declared


def arena_of(geometry: HybridGeometry, owner: str) -> Arena:
    home = Memory(resource_id="vram", kind="simulated-vram", capacity_bytes=1 << 24)
    return home.allocate(owner, geometry.tensors())


def live_tensors() -> Iterator[torch.Tensor]:
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for candidate in gc.get_objects():
            try:
                is_tensor = issubclass(type(candidate), torch.Tensor)
            except ReferenceError:
                continue
            if is_tensor:
                yield candidate


def reachable_tensors(root: object) -> Iterator[torch.Tensor]:
    """Tensors held by ``root`` through any chain of objects of its own."""
    seen: set[int] = set()
    stack: list[Any] = [root]
    while stack:
        item = stack.pop()
        # What everything reaches through its class or module is nobody's own.
        if id(item) in seen or isinstance(item, type) or hasattr(item, "__globals__"):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            yield item
        stack += gc.get_referents(item)


def undeclared(session: PagedSession, arena: Arena) -> list[tuple[int, ...]]:
    """Shapes of live tensors, in the arena or held by the session, that it does not declare."""
    declared = {t.untyped_storage().data_ptr() for t in session.tensors.values()}
    begin, end = arena.address, arena.address + arena.allocated_bytes
    inside = [t for t in live_tensors() if begin <= t.untyped_storage().data_ptr() < end]
    assert len({t.untyped_storage().data_ptr() for t in inside}) == len(declared)
    found = inside + list(reachable_tensors(session))
    return [tuple(t.shape) for t in found if t.untyped_storage().data_ptr() not in declared]


def use(session: PagedSession, snapshot: Any) -> list[torch.Tensor]:
    """A whole life; returns what an executor would hold at its end."""
    slots = []
    for _ in range(2):
        for start in range(0, 20, 5):
            session.cover(start, 5)
            slots = [session.pool.slots("swa", start, start + 5), session.pool.keys("full")[0]]
            session.end_step()
            assert session.ownership()
        copy_declared(session.tensors, snapshot)
        copy_declared(snapshot, session.tensors)
        session.restore(20)
        session.reset()
    return slots


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("make", [geometry_of, evicting])
def test_a_pool_holds_no_tensor_that_it_does_not_declare(make: Any, page_size: int) -> None:
    geometry = make(page_size=page_size)
    # First, since what it found is not walked again.
    accounting = TensorAccounting()
    arena, snapshot = arena_of(geometry, "kv"), arena_of(geometry, "snapshot")
    pool = HybridPool(geometry, arena.tensors)
    session = PagedSession(logical_state_id="state.x", epoch=1, pool=pool)
    held = use(session, snapshot.tensors)
    assert undeclared(session, arena) == []
    del held
    assert accounting.unplanned_bytes([arena, snapshot]) == 0
    assert sum(tensor.nbytes for tensor in session.tensors.values()) == arena.requested_bytes


def test_the_walk_finds_what_is_nested_and_not_declared() -> None:
    class Nested:
        def __init__(self) -> None:
            self.buffers = [{"k": torch.zeros(3, 7)}]

    geometry = geometry_of()
    accounting = TensorAccounting()
    arena = arena_of(geometry, "kv")
    pool = HybridPool(geometry, arena.tensors)
    session = PagedSession(logical_state_id="state.x", epoch=1, pool=pool)
    pool.extra = Nested()
    assert undeclared(session, arena) == [(3, 7)]
    assert accounting.unplanned_bytes([arena]) == 3 * 7 * 4


def test_an_arena_is_released_once_its_session_is_gone() -> None:
    geometry = geometry_of()
    arena = arena_of(geometry, "kv")
    session = PagedSession(
        logical_state_id="state.x", epoch=1, pool=HybridPool(geometry, arena.tensors)
    )
    session.cover(0, 5)
    del session
    assert arena.release() == 0

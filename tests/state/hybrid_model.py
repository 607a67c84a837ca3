"""Small pools to test with, and the independent model of one: lists, dictionaries, one loop."""

import copy
from collections import deque
from typing import Any
from unittest import mock

import torch

from harness.state import table
from harness.state.geometry import EVICT_OUTSIDE_WINDOW, HybridGeometry, KvGroup
from harness.state.hybrid import HybridPool
from harness.state.session import PagedSession

FULL_GROUP = KvGroup(num_layers=2, num_kv_heads=1, head_dim=6)
SWA_GROUP = KvGroup(num_layers=3, num_kv_heads=2, head_dim=4)


def geometry_of(**changes: Any) -> HybridGeometry:
    fields: dict[str, Any] = {
        "max_positions": 40,
        "dtype": "float32",
        "full": FULL_GROUP,
        "swa": SWA_GROUP,
        "window": 8,
    }
    return HybridGeometry(**(fields | changes))


def evicting(**changes: Any) -> HybridGeometry:
    policy = {"eviction_policy": EVICT_OUTSIDE_WINDOW, "chunk_rows": 5}
    return geometry_of(**(policy | changes))


def tensors_of(geometry: HybridGeometry, device: str = "cpu") -> dict[str, torch.Tensor]:
    return {
        spec.name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype), device=device)
        for spec in geometry.tensors()
    }


def session_over(
    geometry: HybridGeometry,
    *,
    pool: type[HybridPool] = HybridPool,
    session: type[PagedSession] = PagedSession,
    name: str = "state.x",
    is_mirrored: bool = False,
    device: str = "cpu",
) -> PagedSession:
    """A session; mirrored: the host keeps copies of the tables, as it does for a device."""
    tensors = tensors_of(geometry, device)
    if not is_mirrored:
        return session(logical_state_id=name, epoch=1, pool=pool(geometry, tensors))
    with mock.patch.object(table, "_shares_memory", return_value=False):
        return session(logical_state_id=name, epoch=1, pool=pool(geometry, tensors))


def tables(session: PagedSession) -> dict[str, list[int]]:
    """Every table of the state: all declared tensors but keys and values."""
    return {n: t.tolist() for n, t in session.tensors.items() if n[-2:] not in (".k", ".v")}


def copies(session: PagedSession) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in session.tensors.items()}


def store(session: PagedSession, start: int, rows: int, tag: float) -> None:
    """Write ``tag + position`` as the keys, and its negative as the values, of every layer."""
    for kind in ("full", "swa"):
        if session.pool.geometry.group(kind) is None:
            continue
        slots = session.pool.slots(kind, start, start + rows)
        marks = torch.arange(start, start + rows, dtype=torch.float32) + tag
        session.pool.keys(kind)[:, slots] = marks.view(1, -1, 1, 1)
        session.pool.values(kind)[:, slots] = -marks.view(1, -1, 1, 1)


class ExhaustedError(Exception):
    pass


class Model:
    """What a hybrid pool must hold, position by position."""

    def __init__(self, geometry: HybridGeometry) -> None:
        self.geometry = geometry
        self.size = geometry.page_size
        self.frontier = 0
        self.evicted = 0
        pages = -(-geometry.max_positions // self.size)
        self.full_free = deque(range(1, pages + 1))
        self.num_full = pages
        if geometry.evicts:
            window, rows = geometry.window, geometry.chunk_rows
            pages = min(pages, -(-(window + rows + self.size - 2) // self.size))
        self.num_swa = pages if geometry.swa else 0
        self.swa_free = deque(range(1, self.num_swa + 1))
        self.full: dict[int, int] = {}
        self.swa: dict[int, int] = {}
        self.stored: dict[int, float] = {}

    def copy(self) -> "Model":
        return copy.deepcopy(self)

    def cover(self, end: int) -> None:
        new = [p // self.size for p in range(self.frontier, end) if p % self.size == 0]
        if len(new) > len(self.full_free) or (self.num_swa and len(new) > len(self.swa_free)):
            raise ExhaustedError
        for page in new:
            self.full[page] = self.full_free.popleft()
            if self.num_swa:
                self.swa[page] = self.swa_free.popleft()
        self.frontier = max(self.frontier, end)

    def reads_evicted(self, start: int) -> bool:
        return self.evicted > 0 and start - self.geometry.window + 1 < self.evicted

    def end_step(self) -> None:
        if not self.geometry.evicts:
            return
        for page in sorted(self.swa):
            # The next row is at the frontier and reads a window that ends there.
            if (page + 1) * self.size <= self.frontier - self.geometry.window + 1:
                self.swa_free.append(self.swa.pop(page))
                self.evicted = (page + 1) * self.size

    def full_slot(self, position: int) -> int:
        return self.full[position // self.size] * self.size + position % self.size

    def swa_slot(self, position: int) -> int:
        """0 where it is evicted."""
        page = self.swa.get(position // self.size, 0)
        return page * self.size + position % self.size if page else 0

    def tables(self) -> dict[str, list[int]]:
        """Mapping and live maps; free lists are compared in their order of use."""
        padding = self.geometry.max_positions - self.frontier
        held = range(self.frontier)
        found = {
            "page_table": [self.full_slot(p) for p in held] + [0] * padding,
            "full.live": self._live(self.num_full, self.full),
        }
        if self.num_swa:
            full_to_swa = [0] * (self.num_full + 1) * self.size
            for position in held:
                full_to_swa[self.full_slot(position)] = self.swa_slot(position)
            found["full_to_swa"] = full_to_swa
            found["swa.live"] = self._live(self.num_swa, self.swa)
        return found

    def free_lists(self) -> dict[str, list[int]]:
        lists = {"full": list(self.full_free)}
        return lists | ({"swa": list(self.swa_free)} if self.num_swa else {})

    @staticmethod
    def _live(num_pages: int, owned: dict[int, int]) -> list[int]:
        return [int(page in owned.values()) for page in range(num_pages + 1)]


def free_lists(session: PagedSession) -> dict[str, list[int]]:
    """Each pool's free pages in the order in which they are handed out."""
    found = {}
    for kind in ("full", "swa"):
        if f"{kind}.free_list" in session.tensors:
            ring = session.tensors[f"{kind}.free_list"].tolist()
            (head,) = session.tensors[f"{kind}.free_head"].tolist()
            found[kind] = [page for page in ring[head:] + ring[:head] if page]
    return found

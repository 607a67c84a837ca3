"""A pool of pages for keys and values of two groups of layers, and the mapping of positions to it.

    position --page_table--> full slot --full_to_swa--> swa slot        slot = page * S + offset

    positions     0 ........ evicted_end ............... frontier ........ max_positions
    page_table    [ full slot of each position           )  0 ...
    full_to_swa   0 ...      [ swa slot of each          )  0 ...
                  evicted     owned by the session, the only caller of
                              map_positions and evict_positions

Full slots are held until reset, also where no layer reads them: they are the address space. Only
the swa group translates twice. The one allocator is :class:`harness.state.pages.PagePool`; this is
its only user. Knows no session and no model.

Shape legend: L layers of a group, K KV heads, D head size, S page size.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from harness.errors import InvalidInputError
from harness.state.errors import DamagedStateError, UnmappedError
from harness.state.geometry import (
    EVICTED_END,
    FULL,
    FULL_TO_SWA,
    GEOMETRY,
    PAGE_TABLE,
    SWA,
    HybridGeometry,
    Kind,
)
from harness.state.ownership import Ownership, PoolMapping, inside, measure
from harness.state.pages import PagePool
from harness.state.table import HostTable, IntArray


@dataclass(frozen=True, kw_only=True)
class _SwaSide:
    """What a pool has besides, where there are layers with a window."""

    pool: PagePool
    full_to_swa: HostTable
    evicted_end: HostTable | None
    """Positions before it are evicted; ``None`` without a policy."""


class HybridPool:
    """Declared tensors of one geometry, and which slot each position has in them."""

    def __init__(self, geometry: HybridGeometry, tensors: Mapping[str, torch.Tensor]) -> None:
        """Bind exactly the tensors that ``geometry`` declares, and map nothing.

        Tables are rebuilt here; keys and values are left as they are.

        Raises:
            InvalidInputError: When the tensors are other ones than the geometry's.
        """
        _check_tensors(geometry, tensors)
        self.geometry = geometry
        self.tensors = tensors
        self._header = HostTable(tensors[GEOMETRY])
        self._page_table = HostTable(tensors[PAGE_TABLE])
        self._full = PagePool(FULL, tensors)
        self._swa: _SwaSide | None = None
        if geometry.has(SWA):
            self._swa = _SwaSide(
                pool=PagePool(SWA, tensors),
                full_to_swa=HostTable(tensors[FULL_TO_SWA]),
                evicted_end=HostTable(tensors[EVICTED_END]) if geometry.evicts else None,
            )
        self.rebuild()

    def keys(self, kind: Kind) -> torch.Tensor:
        """Keys [L, slots, K, D] of the group's layers, in their order."""
        return self.tensors[f"{kind}.k"]

    def values(self, kind: Kind) -> torch.Tensor:
        """Values [L, slots, K, D] of the group's layers, in their order."""
        return self.tensors[f"{kind}.v"]

    def slots(self, kind: Kind, begin: int, end: int) -> torch.Tensor:
        """Slots of the positions [begin, end), int64, in order; never written to by the caller.

        Raises:
            UnmappedError: When a position was never covered, or has been evicted.
        """
        self.require_slots(kind, begin, end)
        return self.translate(kind, begin, end)

    def require_slots(self, kind: Kind, begin: int, end: int) -> None:
        """Check that each of the positions [begin, end) has a slot; reads no device for it.

        Raises:
            UnmappedError: When a position was never covered, or has been evicted.
        """
        if not 0 <= begin <= end <= self.geometry.max_positions:
            raise UnmappedError(
                "positions are outside the state",
                expected=f"a range in [0, {self.geometry.max_positions}]",
                got=f"[{begin}, {end})",
            )
        host = self._host_slots(kind, begin, end)
        if begin < end and host.min() < self.geometry.page_size:
            where = begin + int(np.argmax(host < self.geometry.page_size))
            raise UnmappedError(
                f"position {where} has no slot in pool {kind}",
                expected=f"positions [{begin}, {end}) covered, and not evicted",
                hint="cover rows before they are prepared; evicted ones cannot be read again",
            )

    def translate(self, kind: Kind, begin: int, end: int) -> torch.Tensor:
        """As :meth:`slots`, without any check: 0 where nothing is mapped."""
        full = self._page_table.tensor[begin:end]
        if kind == FULL:
            return full
        return self.tensors[FULL_TO_SWA].index_select(0, full)

    def map_positions(self, begin: int, end: int) -> None:
        """Map the positions [begin, end), which follow the mapped ones. Only its session calls.

        Raises:
            CapacityError: When too few pages are free in either pool; nothing was taken.
            DamagedStateError: When one of the positions is mapped already.
        """
        if self._page_table.host[begin:end].any():
            raise DamagedStateError(
                "positions are mapped that their owner does not hold",
                expected=f"positions [{begin}, {end}) not mapped",
                hint="reset the state",
            )
        size = self.geometry.page_size
        num_pages = -(-end // size) - -(-begin // size)
        if self._swa is not None:
            self._swa.pool.require(num_pages)
        full = self._slots_of(begin, end, self._full.allocate_pages(num_pages), FULL)
        self._page_table.put(slice(begin, end), full)
        if self._swa is not None:
            swa = self._slots_of(begin, end, self._swa.pool.allocate_pages(num_pages), SWA)
            self._swa.full_to_swa.put(full, swa)

    def require_window(self, begin: int) -> None:
        """Check that nothing that rows from ``begin`` on read has been evicted.

        Raises:
            UnmappedError: When something has.
        """
        first, evicted = self.geometry.window_begin(begin), self._evicted_end()
        if first < evicted:
            raise UnmappedError(
                f"rows from position {begin} on read what has been evicted",
                expected=f"rows whose window begins at {evicted} or later",
                got=f"a window from {first} on",
                hint="reset the state, or restore a snapshot that holds fewer positions",
            )

    def eviction_faults(self, frontier: int) -> list[str]:
        """What is wrong with the end of the evicted positions, for an owner of [0, frontier)."""
        found, size = self._evicted_end(), self.geometry.page_size
        most = self.geometry.window_begin(frontier) // size * size
        if 0 <= found <= most and found % size == 0:
            return []
        return [f"{EVICTED_END} is {found}, not a multiple of {size} from 0 to {most}"]

    def evict_positions(self, frontier: int) -> None:
        """Free what no row from ``frontier`` on reads, by the policy. Only its session calls.

        Rows from the frontier F on read positions from F - W + 1 on. A page is freed when all its
        positions lie before that, so what has been freed depends on F alone. Nothing happens
        without a policy.
        """
        swa = self._swa
        if swa is None or swa.evicted_end is None:
            return
        size = self.geometry.page_size
        begin = self._evicted_end()
        end = self.geometry.window_begin(frontier) // size * size
        if end <= begin:
            return
        full = self._page_table.host[begin:end]
        pages = swa.full_to_swa.host[full[::size]] // size
        swa.full_to_swa.put(full, 0)
        swa.pool.free_pages(pages)
        swa.evicted_end.fill(end)

    def rebuild(self) -> None:
        """Map nothing: empty tables, whole free lists, the geometry written."""
        self._header.fill(self.geometry.header())
        self._page_table.fill(0)
        self._full.rebuild()
        if self._swa is not None:
            self._swa.full_to_swa.fill(0)
            self._swa.pool.rebuild()
            if self._swa.evicted_end is not None:
                self._swa.evicted_end.fill(0)

    def read_back(self) -> None:
        """Take over the declared tensors' values, after they were restored bytewise.

        Raises:
            DamagedStateError: When they are of another geometry, or a free list has no head.
        """
        self._header.read_back()
        found = tuple(self._header.host.tolist())
        if found != self.geometry.header():
            raise DamagedStateError(
                "the restored tensors are of another geometry",
                expected=str(self.geometry.header()),
                got=str(found),
            )
        self._page_table.read_back()
        self._full.read_back()
        if self._swa is not None:
            self._swa.full_to_swa.read_back()
            self._swa.pool.read_back()
            if self._swa.evicted_end is not None:
                self._swa.evicted_end.read_back()

    def ownership(self, frontier: int) -> tuple[Ownership, ...]:
        """What each pool owns, counted in the declared tensors, for an owner of [0, frontier)."""
        size = self.geometry.page_size
        page_table = self._page_table.measured()
        held, rest = page_table[:frontier], page_table[frontier:]
        full = PoolMapping(
            num_positions=frontier,
            held_slots=held,
            evicted_slots=held[:0],
            num_stale=int(np.count_nonzero(rest)),
        )
        reports = [measure(FULL, size, self._full.measured(), full)]
        if self._swa is not None:
            evicted_end = 0
            if self._swa.evicted_end is not None:
                evicted_end = int(self._swa.evicted_end.measured()[0])
            swa = _swa_mapping(held, self._swa.full_to_swa.measured(), evicted_end)
            reports.append(measure(SWA, size, self._swa.pool.measured(), swa))
        return tuple(reports)

    def _evicted_end(self) -> int:
        if self._swa is None or self._swa.evicted_end is None:
            return 0
        return int(self._swa.evicted_end.host[0])

    def _host_slots(self, kind: Kind, begin: int, end: int) -> IntArray:
        full: IntArray = self._page_table.host[begin:end]
        if kind == FULL:
            return full
        if self._swa is None:
            raise UnmappedError(f"there is no pool {kind}")
        swa: IntArray = self._swa.full_to_swa.host[full]
        return swa

    def _slots_of(self, begin: int, end: int, pages: IntArray, kind: Kind) -> IntArray:
        """Slots of [begin, end): the rest of the page of ``begin - 1``, then ``pages`` in turn."""
        size = self.geometry.page_size
        if size == 1:
            return pages
        if begin % size:
            last = self._host_slots(kind, begin - 1, begin) // size
            pages = np.concatenate((last, pages))
        positions = np.arange(begin, end, dtype=np.int64)
        slots: IntArray = pages[positions // size - begin // size] * size + positions % size
        return slots


def _swa_mapping(held: IntArray, full_to_swa: IntArray, evicted_end: int) -> PoolMapping:
    # A damaged page table is counted, as positions that translate to none.
    if inside(held, 0, full_to_swa.size).size < held.size:
        held = np.where((held >= 0) & (held < full_to_swa.size), held, 0)
    is_stale = full_to_swa != 0
    is_stale[held] = False
    return PoolMapping(
        num_positions=held.size,
        held_slots=full_to_swa[held[evicted_end:]],
        evicted_slots=full_to_swa[held[:evicted_end]],
        num_stale=int(np.count_nonzero(is_stale)),
    )


def _check_tensors(geometry: HybridGeometry, tensors: Mapping[str, torch.Tensor]) -> None:
    wanted = {spec.name: (f"torch.{spec.dtype}", spec.shape) for spec in geometry.tensors()}
    got = {name: (str(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}
    faults = [
        f"{name}: {got.get(name, 'absent')}, not {wanted.get(name, 'there')}"
        for name in sorted(wanted.keys() | got.keys())
        if wanted.get(name) != got.get(name)
    ]
    faults += [f"{name}: not contiguous" for name, t in tensors.items() if not t.is_contiguous()]
    if faults:
        raise InvalidInputError("a pool's tensors do not fit", got="; ".join(sorted(faults)))

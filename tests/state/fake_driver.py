"""A GPU that is not there: tensors on the host, counted the way CUDA's caching allocator counts.

Holds what was taken by weak reference, so that a block whose tensors are gone is free, as the
allocator sees it. Its side stream only writes down in which order it was used.
"""

import errno
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from harness.state.driver import Segment
from harness.state.recording import Recording

MIB = 1 << 20


@dataclass(eq=False)
class FakePool:
    segments: list["FakeSegment"] = field(default_factory=list)


@dataclass(eq=False)
class FakeSegment:
    base: weakref.ref[torch.Tensor]
    storage: weakref.ref[torch.UntypedStorage]
    address: int
    num_bytes: int
    segment_bytes: int
    pool: weakref.ref[FakePool]

    @property
    def in_use(self) -> bool:
        return self.base() is not None or self.storage() is not None


@dataclass(frozen=True, eq=False)
class FakeGraph:
    """Work, and what its launches hold."""

    work: Callable[[], None]
    pool: FakePool
    held: torch.Tensor

    def replay(self) -> None:
        self.work()


class FakeDriver:
    """Room for ``capacity_bytes``; answers as :class:`harness.state.driver.Driver` does."""

    def __init__(self, capacity_bytes: int = 1 << 34) -> None:
        self.device = torch.device("cpu")
        self.capacity_bytes = capacity_bytes
        self.calls: list[str] = []
        self.pinned: dict[int, int] = {}
        self._segments: list[FakeSegment] = []
        self._kept: list[torch.UntypedStorage] = []
        self._peak = 0

    def description(self) -> str:
        return "a device that is not there"

    def make_pool(self) -> FakePool:
        return FakePool()

    def zeros(self, pool: FakePool, num_bytes: int) -> torch.Tensor:
        size = 2 * MIB if num_bytes <= MIB else 20 * MIB
        block = -(-num_bytes // 512) * 512
        if block >= 10 * MIB:
            size = -(-block // (2 * MIB)) * 2 * MIB
        if self.used_bytes() + size > self.capacity_bytes:
            raise OSError(errno.ENOMEM, "out of memory")
        base = torch.zeros(size, dtype=torch.uint8)[:num_bytes]
        self._segments.append(
            FakeSegment(
                base=weakref.ref(base),
                storage=weakref.ref(base.untyped_storage()),
                address=base.data_ptr(),
                num_bytes=num_bytes,
                segment_bytes=size,
                pool=weakref.ref(pool),
            )
        )
        pool.segments.append(self._segments[-1])
        self._note_peak()
        return base

    def segments(self, pool: FakePool | None = None) -> Sequence[Segment]:
        gc.collect()
        return [
            Segment(
                address=each.address,
                segment_bytes=each.segment_bytes,
                block_bytes=-(-each.num_bytes // 512) * 512 if each.in_use else 0,
                requested_bytes=each.num_bytes if each.in_use else 0,
            )
            for each in self._segments
            if pool is None or each.pool() is pool
        ]

    def give_back(self) -> None:
        gc.collect()
        self.calls.append("give_back")
        self._segments = [s for s in self._segments if s.in_use or s.pool() is not None]

    def peak_block_bytes(self) -> int:
        self._note_peak()
        peak, self._peak = self._peak, 0
        return peak

    def used_bytes(self) -> int:
        return sum(each.segment_bytes for each in self._segments)

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def pin(self, address: int, num_bytes: int) -> None:
        self.pinned[address] = num_bytes

    def unpin(self, address: int) -> None:
        del self.pinned[address]

    @contextmanager
    def sending(self) -> Iterator[None]:
        self.calls.append("begin")
        yield
        self.calls.append("end")

    def sent(self) -> Callable[[], None]:
        number = self.calls.count("end")
        return lambda: self.calls.append(f"arrived {number}")

    def join(self) -> None:
        self.calls.append("join")

    def record(self, work: Callable[[], None]) -> Recording:
        """A recording that holds device memory of its own, as a graph does, while it lives."""
        self.calls.append("record")
        pool = FakePool()
        return FakeGraph(work, pool, self.zeros(pool, MIB))

    def _note_peak(self) -> None:
        self._peak = max(self._peak, sum(s.block_bytes for s in self.segments()))

"""Blocks of a GPU's memory: one pool of the allocator each, measured in the allocator's snapshot.

A pool shares no segment with another one, so that a block's segments are its own: what they take
is read, not computed, and a release is measured as segments that are gone. Host blocks that a GPU
copies from are pinned. Reaches a GPU only through the driver that it is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.errors import ResourceError
from harness.state.backing import Backing, Blocks, HostPages, MappedBacking
from harness.state.driver import Driver, Segment

MIB = 1 << 20
_SMALL_BYTES, _SMALL_SEGMENT_BYTES = MIB, 2 * MIB
_LARGE_BYTES, _LARGE_SEGMENT_BYTES = 10 * MIB, 20 * MIB
_SEGMENT_GRANULE_BYTES = 2 * MIB
_BLOCK_GRANULE_BYTES = 512
MAX_PINNED_BYTES = 256 * MIB
"""Larger host blocks are not pinned: locked pages are taken from everyone on the machine."""


@dataclass(frozen=True, kw_only=True)
class BlockBytes:
    """What one block takes, as the allocator counts."""

    requested_bytes: int
    block_bytes: int
    segment_bytes: int


class DeviceBlocks:
    """Blocks of one GPU's memory."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def rounded(self, size_bytes: int) -> int:
        """The segment that the caching allocator takes for a block alone in its pool.

        From torch's CUDACachingAllocator: 2 MiB for up to 1 MiB, 20 MiB for less than 10 MiB,
        whole multiples of 2 MiB above.
        """
        block = -(-size_bytes // _BLOCK_GRANULE_BYTES) * _BLOCK_GRANULE_BYTES
        if block <= _SMALL_BYTES:
            return _SMALL_SEGMENT_BYTES
        if block < _LARGE_BYTES:
            return _LARGE_SEGMENT_BYTES
        return -(-block // _SEGMENT_GRANULE_BYTES) * _SEGMENT_GRANULE_BYTES

    def take(self, size_bytes: int) -> "DeviceBacking":
        """Take one from a pool of its own."""
        return DeviceBacking(self._driver, size_bytes)

    def throwaway(self) -> Blocks:
        """The same."""
        return self


class DeviceBacking:
    """One block in a pool of its own."""

    def __init__(self, driver: Driver, size_bytes: int) -> None:
        self._driver = driver
        self._pool: Any = driver.make_pool()
        self._base: torch.Tensor | None = driver.zeros(self._pool, max(size_bytes, 1))
        self._address = self._base.data_ptr()

    @property
    def address(self) -> int:
        """Of the first byte, on the device."""
        return self._address

    @property
    def is_live(self) -> bool:
        """Whether something of it is still taken."""
        return self._pool is not None

    def measured(self) -> BlockBytes:
        """What the block takes now."""
        return _total([] if self._pool is None else self._driver.segments(self._pool))

    def piece(self, offset: int, num_bytes: int) -> torch.Tensor:
        """The bytes from ``offset`` on, uint8 [num_bytes], a view of the block."""
        assert self._base is not None
        return self._base[offset : offset + num_bytes]

    def touch(self, offset: int, num_bytes: int) -> None:
        """A device has no pages to wait for."""

    def release(self) -> int:
        """Drop the block and have its segments returned; a tensor of it keeps them."""
        self._base = None
        self._driver.synchronize()
        own = self._driver.segments(self._pool)
        if _total(own).block_bytes:
            return _total(own).segment_bytes
        self._pool = None
        self._driver.give_back()
        addresses = {segment.address for segment in own}
        left = [each for each in self._driver.segments() if each.address in addresses]
        return _total(left).segment_bytes


def _total(segments: Sequence[Segment]) -> BlockBytes:
    return BlockBytes(
        requested_bytes=sum(segment.requested_bytes for segment in segments),
        block_bytes=sum(segment.block_bytes for segment in segments),
        segment_bytes=sum(segment.segment_bytes for segment in segments),
    )


class PinnedPages(HostPages):
    """Host mappings that a GPU can copy from while other work goes on."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def take(self, size_bytes: int) -> Backing:
        """Map and pin one; a large one is only mapped."""
        if self.rounded(size_bytes) > MAX_PINNED_BYTES:
            return super().take(size_bytes)
        return PinnedBacking(self._driver, self.rounded(size_bytes))

    def throwaway(self) -> Blocks:
        """The same."""
        return self


class PinnedBacking(MappedBacking):
    """A mapping whose pages are locked while it lives."""

    def __init__(self, driver: Driver, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._driver = driver
        try:
            driver.pin(self.address, size_bytes)
            self._is_pinned = True
        except ResourceError:
            # Where no more pages may be locked, copies take longer and are as right.
            self._is_pinned = False

    def release(self) -> int:
        """Unlock and unmap."""
        if self._is_pinned:
            self._driver.synchronize()
            self._driver.unpin(self.address)
            self._is_pinned = False
        return super().release()

"""What an arena lies in: one block of bytes that can be measured, and given back.

On the CPU a block is one shared anonymous mapping of its own, since the kernel merges private
anonymous mappings and only a mapping of its own keeps an exact entry in ``/proc``. Tensors are
views of it through one memoryview each: closing the mapping raises ``BufferError`` while any of
them lives, so a release that returned *is* a measurement. Knows no tensors' names and no plan.
"""

import ctypes
import functools
import mmap
from collections.abc import Callable
from typing import Protocol, cast

import torch

_MADV_POPULATE_WRITE = 23


@functools.cache
def _madvise() -> Callable[[int, int, int], int]:
    """Of the C library; Python's own keeps the interpreter's lock."""
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    function.restype = ctypes.c_int
    return cast("Callable[[int, int, int], int]", function)


class Backing(Protocol):
    """One block of zeroed bytes in some memory."""

    @property
    def address(self) -> int:
        """Of the first byte."""

    @property
    def is_live(self) -> bool:
        """Whether the block still exists."""

    def piece(self, offset: int, num_bytes: int) -> torch.Tensor:
        """The bytes from ``offset`` on, uint8 [num_bytes], without a copy."""

    def touch(self, offset: int, num_bytes: int) -> None:
        """Have these bytes' pages there before they are written; changes no byte."""

    def release(self) -> int:
        """Give the block back; returns the bytes still held, since something refers to them.

        The caller has dropped its own tensors and collected garbage.
        """


class Blocks(Protocol):
    """Where a memory's blocks come from."""

    def rounded(self, size_bytes: int) -> int:
        """What taking a block of ``size_bytes`` takes from the memory."""

    def take(self, size_bytes: int) -> Backing:
        """Take a block of at least ``size_bytes``, zeroed.

        Raises:
            OSError: When there is no room.
        """

    def throwaway(self) -> "Blocks":
        """Where blocks come from that nobody measures, and that leave nothing behind."""


class HostPages:
    """Mappings of whole pages."""

    def rounded(self, size_bytes: int) -> int:
        """The least whole number of pages, one or more."""
        return -(-max(size_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE

    def take(self, size_bytes: int) -> Backing:
        """Map one."""
        return MappedBacking(self.rounded(size_bytes))

    def throwaway(self) -> Blocks:
        """Mappings of whole pages that are not shared."""
        return PassingPages()


class PassingPages(HostPages):
    """Private mappings: what is only read of them is one page of zeros, and is not made first."""

    def take(self, size_bytes: int) -> Backing:
        """Map one."""
        return MappedBacking(self.rounded(size_bytes), mmap.MAP_PRIVATE)


class MappedBacking:
    """An anonymous mapping of its own, shared unless it is said to be private."""

    def __init__(self, size_bytes: int, sharing: int = mmap.MAP_SHARED) -> None:
        self._size_bytes = size_bytes
        self._mapping = mmap.mmap(-1, size_bytes, flags=sharing | mmap.MAP_ANONYMOUS)
        anchor = (ctypes.c_char * size_bytes).from_buffer(self._mapping)
        self._address = ctypes.addressof(anchor)
        del anchor
        self._view: memoryview | None = memoryview(self._mapping)

    @property
    def address(self) -> int:
        """Of the first byte."""
        return self._address

    @property
    def is_live(self) -> bool:
        """Whether the mapping still exists."""
        return not self._mapping.closed

    def piece(self, offset: int, num_bytes: int) -> torch.Tensor:
        """The bytes from ``offset`` on, uint8 [num_bytes], in a storage of their own."""
        assert self._view is not None
        # torch takes no empty buffer.
        piece = self._view[offset : offset + max(num_bytes, 1)]
        return torch.frombuffer(piece, dtype=torch.uint8)[:num_bytes]

    def touch(self, offset: int, num_bytes: int) -> None:
        """Take pages in one call, which lets other threads run; as they are written otherwise."""
        if self.is_live:
            # A kernel that cannot (before 5.14) leaves them to the first write.
            _madvise()(self._address + offset, num_bytes, _MADV_POPULATE_WRITE)

    def release(self) -> int:
        """Unmap; a tensor, numpy array or memoryview of the mapping keeps it mapped."""
        try:
            if self._view is not None:
                self._view.release()
                self._view = None
            self._mapping.close()
        except BufferError:
            pass
        return self._size_bytes if self.is_live else 0

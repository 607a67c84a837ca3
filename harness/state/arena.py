"""Memories and arenas: planned bytes as real mappings that can be seen, and released, one by one.

On the CPU each materialization is one shared anonymous mapping of its own, since the kernel merges
private anonymous mappings and only a mapping of its own keeps an exact entry in ``/proc``.
Tensors are views of it through one memoryview each: closing the mapping raises ``BufferError``
while any of them lives, so a release that returned *is* a measurement. Knows no plan and no model.
"""

import ctypes
import gc
import mmap
import weakref
from collections.abc import Mapping, Sequence

import torch

from harness.errors import ResourceError
from harness.plan.layout import TensorSpec

ALIGNMENT_BYTES = 64


class Arena:
    """One mapping and the tensors that live in it."""

    def __init__(self, memory: "Memory", owner: str, specs: Sequence[TensorSpec]) -> None:
        offsets = []
        end = 0
        for spec in specs:
            offsets.append(end)
            end += -(-spec.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        size = -(-max(end, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        memory.reserve(owner, size)
        self.memory = memory
        self.owner = owner
        self.allocated_bytes = size
        try:
            self._mapping = mmap.mmap(-1, size)
        except OSError as error:
            memory.allocated_bytes -= size
            raise ResourceError(
                f"memory {memory.resource_id} cannot be mapped",
                expected=f"{size} bytes for {owner}",
                got=str(error),
            ) from error
        anchor = (ctypes.c_char * size).from_buffer(self._mapping)
        self.address = ctypes.addressof(anchor)
        del anchor
        self._view: memoryview | None = memoryview(self._mapping)
        self._tensors: dict[str, torch.Tensor] = {}
        self._weak: list[weakref.ref[torch.Tensor]] = []
        for spec, offset in zip(specs, offsets, strict=True):
            count = spec.num_bytes
            piece = self._view[offset : offset + max(count, 1)]
            flat = torch.frombuffer(piece, dtype=torch.uint8)[:count]
            tensor = flat.view(getattr(torch, spec.dtype)).view(spec.shape)
            self._tensors[spec.name] = tensor
            self._weak.append(weakref.ref(tensor))

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Live tensors by name; empty after release."""
        return self._tensors

    @property
    def requested_bytes(self) -> int:
        """Bytes of the live tensors, deduplicated by storage."""
        storages = [t.untyped_storage() for t in self._tensors.values() if t.nbytes]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    @property
    def is_mapped(self) -> bool:
        """Whether the mapping still exists."""
        return not self._mapping.closed

    def contains(self, address: int) -> bool:
        """Whether an address lies inside the live mapping."""
        return self.is_mapped and self.address <= address < self.address + self.allocated_bytes

    def weak_tensors(self) -> tuple[weakref.ref[torch.Tensor], ...]:
        """Weak references to every tensor ever handed out."""
        return tuple(self._weak)

    def release(self) -> int:
        """Unmap, and return the bytes still mapped afterwards (0 unless something holds on).

        A tensor, numpy array or memoryview that still refers to the mapping keeps it mapped; the
        arena then stays counted against its memory.
        """
        if not self.is_mapped:
            return 0
        self._tensors.clear()
        gc.collect()
        if self._view is not None:
            try:
                self._view.release()
                self._view = None
            except BufferError:
                return self.allocated_bytes
        try:
            self._mapping.close()
        except BufferError:
            return self.allocated_bytes
        self.memory.unreserve(self)
        return 0


class Memory:
    """One bound memory resource; exhaustion is an error before anything is taken."""

    def __init__(self, *, resource_id: str, kind: str, capacity_bytes: int) -> None:
        self.resource_id = resource_id
        self.kind = kind
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self.arenas: list[Arena] = []

    def allocate(self, owner: str, specs: Sequence[TensorSpec]) -> Arena:
        """Map one arena for ``owner`` and lay the tensors out in it, zeroed.

        Raises:
            ResourceError: When the capacity does not suffice; nothing has been taken then.
        """
        arena = Arena(self, owner, specs)
        self.arenas.append(arena)
        return arena

    def reserve(self, owner: str, size_bytes: int) -> None:
        """Count ``size_bytes`` against the capacity."""
        if self.allocated_bytes + size_bytes > self.capacity_bytes:
            raise ResourceError(
                f"memory {self.resource_id} is exhausted",
                expected=f"{size_bytes} bytes free for {owner}",
                got=f"{self.capacity_bytes - self.allocated_bytes} of {self.capacity_bytes} bytes",
                hint="derive the plan for a larger capacity, or run it on a larger device",
            )
        self.allocated_bytes += size_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)

    def unreserve(self, arena: Arena) -> None:
        """Give the bytes of a released arena back."""
        self.allocated_bytes -= arena.allocated_bytes
        self.arenas.remove(arena)

    @property
    def requested_bytes(self) -> int:
        """Tensor bytes of all live arenas."""
        return sum(arena.requested_bytes for arena in self.arenas)

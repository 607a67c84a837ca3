"""Memories and arenas: planned bytes as real blocks that can be seen, and released, one by one.

Each materialization has one block of its own (see :mod:`harness.state.backing`), and its tensors
are views of it. Knows no plan and no model.
"""

import gc
import weakref
from collections.abc import Mapping, Sequence

import torch

from harness.errors import ResourceError
from harness.plan.layout import TensorSpec
from harness.state.backing import Blocks, HostPages
from harness.team import Team

ALIGNMENT_BYTES = 64
"""Where a tensor may begin; planned capacities count with it."""
_TOUCHED_BYTES = 4 << 20


class Arena:
    """One block and the tensors that live in it."""

    def __init__(self, memory: "Memory", owner: str, specs: Sequence[TensorSpec]) -> None:
        offsets = []
        end = 0
        for spec in specs:
            offsets.append(end)
            end += -(-spec.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.allocated_bytes = memory.reserve(owner, end)
        self.memory = memory
        self.owner = owner
        try:
            self.backing = memory.blocks.take(end)
        except OSError as error:
            memory.allocated_bytes -= self.allocated_bytes
            raise ResourceError(
                f"memory {memory.resource_id} cannot be mapped",
                expected=f"{self.allocated_bytes} bytes for {owner}",
                got=str(error),
            ) from error
        self.address = self.backing.address
        self._tensors: dict[str, torch.Tensor] = {}
        self._weak: list[weakref.ref[torch.Tensor]] = []
        for spec, offset in zip(specs, offsets, strict=True):
            flat = self.backing.piece(offset, spec.num_bytes)
            tensor = flat.view(getattr(torch, spec.dtype)).view(spec.shape)
            self._tensors[spec.name] = tensor
            self._weak.append(weakref.ref(tensor))

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Live tensors by name; empty after release."""
        return self._tensors

    @property
    def requested_bytes(self) -> int:
        """Bytes of the live tensors, each byte once."""
        spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in self._tensors.values())
        total = covered = 0
        for begin, end in spans:
            total += max(0, end - max(begin, covered))
            covered = max(covered, end)
        return total

    @property
    def is_mapped(self) -> bool:
        """Whether the block still exists."""
        return self.backing.is_live

    def contains(self, address: int) -> bool:
        """Whether an address lies inside the live block."""
        return self.is_mapped and self.address <= address < self.address + self.allocated_bytes

    def weak_tensors(self) -> tuple[weakref.ref[torch.Tensor], ...]:
        """Weak references to every tensor ever handed out."""
        return tuple(self._weak)

    def touch(self, team: Team, num_bytes: int | None = None) -> None:
        """Have pages of the block there before they are written, taken by all threads of a team.

        A page that is taken when it is first written costs more than hashing what comes into it.

        Args:
            team: Whose threads take them.
            num_bytes: From the block's start; the whole block by default.
        """
        end = self.allocated_bytes if num_bytes is None else min(num_bytes, self.allocated_bytes)

        def take(begin: int) -> None:
            self.backing.touch(begin, min(_TOUCHED_BYTES, end - begin))

        for _ in team.each(take, range(0, end, _TOUCHED_BYTES)):
            pass

    def release(self) -> int:
        """Give the block back; returns the bytes still held (0 unless something holds on).

        Whatever still refers to the block keeps it; the arena then stays counted against its
        memory.
        """
        if not self.is_mapped:
            return 0
        self._tensors.clear()
        gc.collect()
        if self.backing.release():
            return self.allocated_bytes
        self.memory.unreserve(self)
        return 0


class Memory:
    """One bound memory resource; exhaustion is an error before anything is taken."""

    def __init__(
        self, *, resource_id: str, kind: str, capacity_bytes: int, blocks: Blocks | None = None
    ) -> None:
        self.resource_id = resource_id
        self.kind = kind
        self.capacity_bytes = capacity_bytes
        self.blocks = HostPages() if blocks is None else blocks
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

    def reserve(self, owner: str, size_bytes: int) -> int:
        """Count what a block of ``size_bytes`` takes against the capacity, and return it."""
        taken = self.blocks.rounded(size_bytes)
        if self.allocated_bytes + taken > self.capacity_bytes:
            raise ResourceError(
                f"memory {self.resource_id} is exhausted",
                expected=f"{taken} bytes free for {owner}",
                got=f"{self.capacity_bytes - self.allocated_bytes} of {self.capacity_bytes} bytes",
                hint="derive the plan for a larger capacity, or run it on a larger device",
            )
        self.allocated_bytes += taken
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return taken

    def throwaway(self) -> "Memory":
        """An empty memory of the same kind, for what leaves nothing behind."""
        return Memory(
            resource_id=self.resource_id,
            kind=self.kind,
            capacity_bytes=self.capacity_bytes,
            blocks=self.blocks.throwaway(),
        )

    def unreserve(self, arena: Arena) -> None:
        """Give the bytes of a released arena back."""
        self.allocated_bytes -= arena.allocated_bytes
        self.arenas.remove(arena)

    @property
    def requested_bytes(self) -> int:
        """Tensor bytes of all live arenas."""
        return sum(arena.requested_bytes for arena in self.arenas)

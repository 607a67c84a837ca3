"""Resident tensors as slots, each filled once from one checkpoint tensor. Knows no family.

Whether a slot holds data is known twice: from the record of completed fills, and from the bytes,
since a slot is marked before it is filled and a row that still ends in marks was never written.
"""

import functools
from collections.abc import Mapping, Sequence

import torch

from harness.adapters.common.fills import check_read, fill
from harness.adapters.common.marks import is_unwritten, mark_unwritten
from harness.adapters.common.rows import Fill, ResidentTensor, RowSource
from harness.errors import InvalidInputError


@functools.lru_cache(maxsize=8)
def _slots(
    residents: tuple[ResidentTensor, ...],
) -> Mapping[str, tuple[tuple[str, RowSource], ...]]:
    """Checkpoint key -> where it goes, in arena order.

    Kept, since staging, residency and a warm-up before them ask for the same: what one of them
    made anew, beside state of gigabytes, would be pages that no plan knows.
    """
    slots: dict[str, tuple[tuple[str, RowSource], ...]] = {}
    for tensor in residents:
        for source in tensor.sources:
            slots[source.key] = (*slots.get(source.key, ()), (tensor.name, source))
    return slots


class ResidentBank:
    """Slots of one residency; one checkpoint tensor may fill several."""

    def __init__(
        self, residents: Sequence[ResidentTensor], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self._tensors = tensors
        self._slots = _slots(tuple(residents))
        self._filled: set[str] = set()

    @property
    def keys(self) -> tuple[str, ...]:
        """Checkpoint keys in arena order."""
        return tuple(self._slots)

    def takes(self, key: str, dtype: str, shape: tuple[int, ...]) -> bool:
        """Whether a checkpoint tensor of this form can be read straight into its first slot."""
        name, source = self._slots[key][0]
        slot = self._rows(name, source)
        is_copied = source.fill in (Fill.COPY, Fill.COPY_SCALES)
        return is_copied and slot.dtype == getattr(torch, dtype) and tuple(slot.shape) == shape

    def place(self, key: str) -> torch.Tensor:
        """The rows into which a checkpoint tensor that :meth:`takes` allows is read."""
        (_, first), *_ = self._slots_of(key)
        return first

    def complete(self, key: str) -> None:
        """Check what was read into its :meth:`place`, and bring it into its other slots.

        Raises:
            CheckpointError: When a scale is not one, or a weight is not a number.
        """
        (place, first), *others = self._slots_of(key)
        check_read(place, first)
        for other, slot in others:
            if other.fill.places:
                mark_unwritten(slot)
            fill(other, slot, first)
        self._filled.add(key)

    def fill(self, key: str, tensor: torch.Tensor) -> None:
        """Bring one checkpoint tensor into its rows, as its sources say.

        Raises:
            CheckpointError: When a scale is not one.
        """
        slots = self._slots_of(key)
        for source, slot in slots:
            if source.fill.places:
                mark_unwritten(slot)
        for source, slot in slots:
            fill(source, slot, tensor)
        self._filled.add(key)

    def copy(self, other: "ResidentBank") -> None:
        """Copy every tensor of a bank of the same slots, and what is known of them."""
        for name, tensor in self._tensors.items():
            tensor.copy_(other._tensors[name])
        self._filled |= other._filled

    def unpopulated(self) -> tuple[str, ...]:
        """Slots without data, as ``tensor[first:last] <- key``, in arena order."""
        return tuple(
            f"{name}[{source.row_offset}:{source.row_offset + source.rows}] <- {key}"
            for key, slots in self._slots.items()
            for name, source in slots
            if key not in self._filled
            or (source.fill.places and is_unwritten(self._rows(name, source)))
        )

    def _rows(self, name: str, source: RowSource) -> torch.Tensor:
        return self._tensors[name][source.row_offset : source.row_offset + source.rows]

    def _slots_of(self, key: str) -> list[tuple[RowSource, torch.Tensor]]:
        if key in self._filled:
            raise InvalidInputError("a slot is filled twice", where=key)
        return [(source, self._rows(name, source)) for name, source in self._slots[key]]

"""The merged resident tensors as slots, each filled once from one checkpoint tensor.

Whether a slot holds data is known twice: from the record of completed fills, and from the bytes,
since a slot is marked before it is filled and a row that is still all marks was never written.
"""

from collections.abc import Mapping

import torch

from harness.adapters.llama.config import LlamaConfig
from harness.adapters.llama.keys import RowSource, resident_tensors
from harness.errors import InvalidInputError
from harness.plan.records import ModelRange
from harness.realize.adapter import TensorSource

_MARK = 0xFF
_SIGNED = {2: torch.int16, 4: torch.int32}


def mark_unwritten(tensor: torch.Tensor) -> None:
    """Fill with a bit pattern (a negative NaN in every element) that no row of weights has."""
    tensor.view(torch.uint8).fill_(_MARK)


def is_unwritten(tensor: torch.Tensor) -> bool:
    """Whether some row (the whole of a vector) still holds nothing but marks."""
    bits = tensor.view(_SIGNED[tensor.element_size()]).view(
        tensor.shape[0] if tensor.ndim == 2 else 1, -1
    )
    # As a signed integer a mark is -1, above every other negative: few rows need a second look.
    suspects = bits[bits.amax(dim=1) == -1]
    return bool(suspects.numel()) and bool((suspects.amin(dim=1) == -1).any())


class ResidentBank:
    """Slots of one merged residency."""

    def __init__(
        self, config: LlamaConfig, spec: ModelRange, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self._tensors = tensors
        self._slots: dict[str, tuple[str, RowSource]] = {
            source.key: (tensor.name, source)
            for tensor in resident_tensors(config, spec)
            for source in tensor.sources
        }
        self._filled: set[str] = set()
        self.dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")

    @property
    def keys(self) -> tuple[str, ...]:
        """Checkpoint keys in arena order."""
        return tuple(self._slots)

    def read(self, key: str, source: TensorSource) -> None:
        """Read one checkpoint tensor of the same dtype straight into its rows."""
        slot = self._take(key)
        source.read_into(key, slot)
        self._filled.add(key)

    def fill(self, key: str, tensor: torch.Tensor) -> None:
        """Copy one checkpoint tensor into its rows, rounding to their dtype."""
        self._take(key).copy_(tensor)
        self._filled.add(key)

    def unpopulated(self) -> tuple[str, ...]:
        """Slots without data, as ``tensor[first:last] <- key``, in arena order."""
        return tuple(
            f"{name}[{source.row_offset}:{source.row_offset + source.rows}] <- {key}"
            for key, (name, source) in self._slots.items()
            if key not in self._filled or is_unwritten(self._rows(key))
        )

    def _rows(self, key: str) -> torch.Tensor:
        name, source = self._slots[key]
        return self._tensors[name][source.row_offset : source.row_offset + source.rows]

    def _take(self, key: str) -> torch.Tensor:
        if key in self._filled:
            raise InvalidInputError("a slot is filled twice", where=key)
        slot = self._rows(key)
        mark_unwritten(slot)
        return slot

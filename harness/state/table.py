"""A declared integer tensor that the host reads without waiting for a device.

On the CPU the host's array *is* the tensor's memory. On a device it is a mirror: every change goes
to both, and a bytewise restore of the tensor is followed by :meth:`HostTable.read_back`. Small
changes, those of a decode step, travel as arguments of launches: nothing is copied, so nothing is
waited for, and no host memory has to stay as it is until it was read.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]
MAX_FILLS = 16
"""A change of more runs of equal values is copied, which waits for the device."""


def _shares_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


class HostTable:
    """One declared int64 tensor of one dimension, and the host's array of the same values."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Bind ``tensor``; the array holds its values of now."""
        self.tensor = tensor
        self._shares_memory = _shares_memory(tensor)
        self.host: IntArray = self.measured()

    def measured(self) -> IntArray:
        """The tensor's own values; on a device this waits and copies."""
        if self._shares_memory:
            shared: IntArray = self.tensor.numpy()
            return shared
        return self.tensor.cpu().numpy().copy()

    def read_back(self) -> None:
        """Take over the tensor's values, after something else wrote them."""
        if not self._shares_memory:
            self.host = self.measured()

    def fill(self, values: Sequence[int] | IntArray | int) -> None:
        """Set every element."""
        self.host[:] = values
        if self._shares_memory:
            return
        if isinstance(values, int):
            self.tensor.fill_(values)
        else:
            self.tensor.copy_(torch.from_numpy(self.host))

    def put(self, indices: IntArray | slice, values: Sequence[int] | IntArray | int) -> None:
        """Set the elements at ``indices``, which are distinct."""
        self.host[indices] = values
        if self._shares_memory:
            return
        if isinstance(indices, slice):
            places = np.arange(*indices.indices(self.host.size), dtype=np.int64)
        else:
            places = indices
        changed = self.host[places]
        runs = _runs(places, changed)
        if len(runs) <= MAX_FILLS:
            for begin, end in runs:
                self.tensor[places[begin] : places[end - 1] + 1].fill_(int(changed[begin]))
        else:
            device = self.tensor.device
            where = torch.from_numpy(places).to(device)
            self.tensor[where] = torch.from_numpy(changed).to(device)


def _runs(places: IntArray, values: IntArray) -> list[tuple[int, int]]:
    """Half-open ranges of ``places`` that lie side by side and have one value."""
    if not places.size:
        return []
    is_first = (np.diff(places) != 1) | (np.diff(values) != 0)
    ends = [*(np.flatnonzero(is_first) + 1).tolist(), places.size]
    return list(zip([0, *ends[:-1]], ends, strict=True))

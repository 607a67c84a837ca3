"""A declared integer tensor that the host reads without waiting for a device.

On the CPU the host's array *is* the tensor's memory. On a device it is a mirror: every change goes
to both, and a bytewise restore of the tensor is followed by :meth:`HostTable.read_back`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]


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
        if not self._shares_memory:
            self.tensor.copy_(torch.from_numpy(self.host))

    def put(self, indices: IntArray | slice, values: Sequence[int] | IntArray | int) -> None:
        """Set the elements at ``indices``, which are distinct."""
        self.host[indices] = values
        if self._shares_memory:
            return
        changed = torch.from_numpy(np.ascontiguousarray(self.host[indices]))
        where = indices if isinstance(indices, slice) else torch.from_numpy(indices)
        device = self.tensor.device
        self.tensor[where if isinstance(where, slice) else where.to(device)] = changed.to(device)

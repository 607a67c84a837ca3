"""A list of operations over rows of one step, carried out in one call. Knows no model.

Results of operations lie in scratch memory that a call allocates and the caller reads before it
lets go; nothing stays between calls. A buffer is [R, size] for the R rows of a step.
"""

from dataclasses import dataclass

import torch

from kernels.native.calls import Op, Relative
from kernels.native.library import run

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffer:
    """One row of a result, and where it lies in the scratch memory."""

    offset: Relative
    size: int
    dtype: torch.dtype

    def of(self, scratch: torch.Tensor, rows: int) -> torch.Tensor:
        """The buffer [rows, size] in a call's scratch memory, a view."""
        begin = rows * self.offset // self.dtype.itemsize
        return scratch.view(self.dtype).as_strided((rows, self.size), (self.size, 1), begin)


class Program:
    """Operations in order, and the buffers between them."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._array = (Op * 0)()
        self._row_bytes = 0

    def __len__(self) -> int:
        return len(self._ops) or len(self._array)

    def buffer(self, size: int, dtype: torch.dtype) -> Buffer:
        """Room for ``size`` elements of each row."""
        offset = self._row_bytes
        self._row_bytes += _aligned(size * dtype.itemsize)
        return Buffer(offset=Relative(offset), size=size, dtype=dtype)

    @property
    def rest(self) -> Relative:
        """Where the memory behind all buffers begins, once they are all made."""
        return Relative(self._row_bytes)

    def add(self, op: Op) -> int:
        """Append an operation; returns how many there are."""
        self._ops.append(op)
        return len(self._ops)

    def seal(self) -> None:
        """Lay the operations out for calls; none is added after, and tensors are not held."""
        self._array = (Op * len(self._ops))(*self._ops)
        self._ops = []

    def scratch(self, rows: int, rest_bytes: int = 0) -> torch.Tensor:
        """Memory for one call over ``rows`` rows, with so many bytes behind the buffers."""
        num_bytes = rows * self._row_bytes + _aligned(rest_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8)

    def run(
        self, scratch: torch.Tensor, rows: int, start_position: int, begin: int = 0, end: int = -1
    ) -> None:
        """Carry out operations [begin, end), by default all."""
        count = (len(self) if end < 0 else end) - begin
        run(
            self._array,
            count,
            rows,
            start_position=start_position,
            scratch=scratch,
            skipped=begin,
        )


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

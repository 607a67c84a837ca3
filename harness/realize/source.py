"""The bounded reader, seen as a source of tensors. The only place where the two meet."""

import torch

from harness.checkpoint.reader import BoundedReader
from harness.state.digests import tensor_bytes


class ReaderSource:
    """Reads checkpoint tensors straight into tensors that the caller owns."""

    def __init__(self, reader: BoundedReader) -> None:
        self._reader = reader

    def read_into(self, key: str, target: torch.Tensor) -> None:
        """Read one whole tensor's bytes into ``target``, hashing them on the way."""
        self._reader.read_into(key, tensor_bytes(target))

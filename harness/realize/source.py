"""The bounded reader, seen as a source of tensors. The only place where the two meet."""

from collections.abc import Callable
from functools import partial

import torch

from harness.checkpoint.reader import BoundedReader
from harness.state.digests import tensor_bytes


class ReaderSource:
    """Reads checkpoint tensors straight into tensors that the caller owns."""

    def __init__(self, reader: BoundedReader) -> None:
        self._reader = reader

    def begin(self, key: str, target: torch.Tensor) -> Callable[[], None]:
        """Begin to read one whole tensor's bytes into ``target``, hashing them on the way."""
        return partial(self._reader.finish, self._reader.begin(key, tensor_bytes(target)))

"""Writes a safetensors file tensor by tensor, with bytes that depend on nothing but its content.

The order is the one the safetensors library uses (wide elements first, then by key), so every
tensor is aligned to its element size. One piece is in memory at a time.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.checkpoint.dtypes import SAFETENSORS_DTYPES, SAFETENSORS_NAMES
from harness.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class TensorToWrite:
    """One tensor: torch's dtype name, shape, and its bytes in pieces, produced on demand."""

    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[bytes]]


def file_order(dtypes: Mapping[str, str]) -> list[str]:
    """Keys in the order in which their tensors are written, from torch's dtype names."""
    return sorted(dtypes, key=lambda key: (-_element_bytes(dtypes[key]), key))


def write_safetensors(
    path: Path,
    tensors: Mapping[str, TensorToWrite],
    *,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write a new file and flush it to disk.

    Raises:
        CheckpointError: When a tensor's pieces are not exactly its bytes.
    """
    order = file_order({key: tensor.dtype for key, tensor in tensors.items()})
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for key in order:
        tensor = tensors[key]
        end = offset + math.prod(tensor.shape) * _element_bytes(tensor.dtype)
        header[key] = {
            "dtype": SAFETENSORS_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    encoded += b" " * (-len(encoded) % 8)
    total = max(offset, 1)
    written = 0
    with path.open("xb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for key in order:
            expected = math.prod(tensors[key].shape) * _element_bytes(tensors[key].dtype)
            count = 0
            for piece in tensors[key].pieces():
                count += file.write(piece)
            if count != expected:
                raise CheckpointError(
                    f"tensor {key!r} was converted to another size",
                    expected=f"{expected} bytes",
                    got=f"{count} bytes",
                    where=str(path),
                )
            written += count
            if progress is not None:
                progress(written / total)
        file.flush()
        os.fsync(file.fileno())


def _element_bytes(dtype: str) -> int:
    return SAFETENSORS_DTYPES[SAFETENSORS_NAMES[dtype]].num_bytes

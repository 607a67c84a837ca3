"""Kept tensors as numpy arrays: from the bytes of one stored safetensors file.

bfloat16 and float8 have no numpy type; an array keeps its raw bits beside the values. Imports no
torch; knows nothing of what the tensors are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.checkpoint.header import read_header_by
from harness.errors import NotEvaluableError

_INTEGERS: Mapping[str, str] = {
    "bool": "u1",
    "uint8": "u1",
    "int8": "i1",
    "uint16": "<u2",
    "int16": "<i2",
    "uint32": "<u4",
    "int32": "<i4",
    "uint64": "<u8",
    "int64": "<i8",
}
_FLOATS: Mapping[str, tuple[str, str]] = {
    "float16": ("<f2", "<i2"),
    "float32": ("<f4", "<i4"),
    "float64": ("<f8", "<i8"),
}


@dataclass(frozen=True, kw_only=True)
class KeptTensor:
    """One tensor: its bytes, its values, and its place among the numbers of its type."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    values: NDArray[np.float64]
    """Flat. Exact, but for integers beyond 2**53."""
    bits: NDArray[Any]
    """Flat, signed integers of the type's width."""
    is_float: bool


def read_kept(data: bytes, *, where: str) -> dict[str, KeptTensor]:
    """Every tensor of a file, by its name there.

    Raises:
        CheckpointError: When the bytes are no valid safetensors file.
        NotEvaluableError: When a tensor has a type whose numbers are not known here.
    """
    header = read_header_by(
        lambda offset, count: bytearray(data[offset : offset + count]),
        size_bytes=len(data),
        where=where,
    )
    found = {}
    for name, entry in header.entries.items():
        begin = header.data_offset + entry.begin
        raw = data[begin : header.data_offset + entry.end]
        found[name] = _tensor(entry.dtype, tuple(entry.shape), raw)
    return found


def _tensor(dtype: str, shape: tuple[int, ...], raw: bytes) -> KeptTensor:
    bits: NDArray[Any]
    values: NDArray[Any]
    if dtype in _FLOATS:
        of_value, of_bits = _FLOATS[dtype]
        values, bits = np.frombuffer(raw, of_value), np.frombuffer(raw, of_bits)
    elif dtype == "bfloat16":
        bits = np.frombuffer(raw, "<i2")
        values = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    elif dtype in _INTEGERS:
        values = bits = np.frombuffer(raw, _INTEGERS[dtype])
    else:
        raise NotEvaluableError(
            "numbers of this type are not compared here",
            expected=", ".join([*_FLOATS, "bfloat16", *_INTEGERS]),
            got=dtype,
        )
    return KeptTensor(
        dtype=dtype,
        shape=shape,
        data=raw,
        values=values.astype(np.float64),
        bits=bits,
        is_float=dtype in _FLOATS or dtype == "bfloat16",
    )

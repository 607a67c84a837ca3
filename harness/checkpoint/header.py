"""The header of a safetensors file, validated before anything else of the file is read.

Layout: 8 bytes little-endian header length N, N bytes of JSON, then the data section. Every tensor
names its dtype, shape and byte range in the data section; the ranges must tile the section exactly.
Knows nothing of models or plans.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harness.checkpoint.dtypes import SAFETENSORS_DTYPES
from harness.checkpoint.files import identity, open_regular, problems_error, read_exactly
from harness.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
MAX_COMMAS = 4_000_000
"""Bounds the parsed header's memory; a tensor of rank 2 needs five."""
MAX_RANK = 64
MAX_DIMENSION = 2**53
_FIELDS = {"dtype", "shape", "data_offsets"}
_SNIFF_BYTES = 512
_FOREIGN = (
    (b"version https://git-lfs", "a git-lfs pointer", "run `git lfs pull` to get the file itself"),
    (b"<!doctype html", "an HTML page", "the download saved a web page; fetch the file itself"),
    (b"<html", "an HTML page", "the download saved a web page; fetch the file itself"),
    (b"pk\x03\x04", "a zip archive", "pickled checkpoints are not read; convert to safetensors"),
    (b"\x80\x02", "a pickle", "pickled checkpoints are not read; convert to safetensors"),
    (b"gguf", "a GGUF file", "convert it to safetensors"),
)


class HeaderEntry(NamedTuple):
    """One tensor, as the header declares it. A tuple, since a header can hold 100,000 of them."""

    key: str
    dtype: str
    """torch's name."""
    shape: tuple[int, ...]
    begin: int
    """First byte, counted from the start of the data section."""
    end: int
    """One past the last byte."""

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return self.end - self.begin


@dataclass(frozen=True, kw_only=True)
class Header:
    """A validated header."""

    entries: Mapping[str, HeaderEntry]
    """By key, in the order of the bytes in the file."""
    data_offset: int
    """Where the data section begins in the file."""
    metadata: Mapping[str, str]
    size_bytes: int
    """Size of the whole file; exactly what the header says."""


def read_header(path: Path) -> Header:
    """Read and validate one file's header.

    Raises:
        CheckpointError: With every problem found.
    """
    descriptor = open_regular(path)
    try:
        return read_header_from(descriptor, where=str(path))
    finally:
        os.close(descriptor)


def read_header_from(descriptor: int, *, where: str) -> Header:
    """Read and validate the header of an open regular file (see :func:`read_header`)."""
    size = identity(descriptor).size_bytes

    def read(offset: int, num_bytes: int) -> bytearray:
        piece = bytearray(num_bytes)
        if read_exactly(descriptor, memoryview(piece), offset) < num_bytes:
            problem = "the file shrank while it was read"
            raise problems_error(problem, [f"{size} bytes"], where=where)
        return piece

    return read_header_by(read, size_bytes=size, where=where)


def read_header_by(read: Callable[[int, int], bytearray], *, size_bytes: int, where: str) -> Header:
    """Validate a header whose bytes are had through a function.

    Args:
        read: Gives exactly so many bytes from an offset on, or raises; called at most twice, first
            for the beginning of the file, and never for more than the longest header.
        size_bytes: Size of the whole file.
        where: Name of the file in messages.

    Raises:
        CheckpointError: With every problem found.
    """
    size = size_bytes
    start = read(0, min(_SNIFF_BYTES, size))
    length = int.from_bytes(start[:8], "little")
    problem = _length_problem(size, length)
    if problem is not None or start[8:9] != b"{":
        _refuse_foreign(bytes(start), where)
    if problem is not None:
        raise problems_error("not a safetensors file", [problem], where=where)
    raw = read(8, length)
    document, problems = _parse(raw)
    del raw
    parsed_whole = not problems
    metadata = _metadata(document.pop("__metadata__", {}), problems)
    entries = [
        entry
        for key, value in document.items()
        if (entry := _entry(key, value, problems)) is not None
    ]
    entries.sort(key=lambda entry: (entry.begin, entry.end, entry.key))
    if parsed_whole and len(entries) == len(document):
        _check_tiling(entries, size - 8 - length, problems)
    if problems:
        raise problems_error("invalid safetensors header", problems, where=where)
    return Header(
        entries={entry.key: entry for entry in entries},
        data_offset=8 + length,
        metadata=metadata,
        size_bytes=size,
    )


def _refuse_foreign(start: bytes, where: str) -> None:
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for prefix, kind, hint in _FOREIGN:
        if text.startswith(prefix):
            raise CheckpointError(
                "not a safetensors file",
                expected="safetensors data",
                got=kind,
                where=where,
                hint=hint,
            )


def _length_problem(size: int, length: int) -> str | None:
    if size < 8:
        return f"{size} bytes: too short for a header length"
    if length > MAX_HEADER_BYTES:
        return f"header length {length} is more than {MAX_HEADER_BYTES} bytes"
    if length > size - 8:
        return f"header length {length} is more than the file's {size - 8} bytes after it"
    return None


def _parse(raw: bytearray) -> tuple[dict[str, Any], list[str]]:
    # Not canonical.parse_json: it walks the text once more for depth and converts every integer
    # in Python, which takes three times as long on the largest headers. Depth is bounded by the
    # parser's own recursion check, integers by the range checks below.
    problems: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            counts = Counter(name for name, _ in items)
            problems.extend(f"duplicate key {k!r}" for k, count in counts.items() if count > 1)
        return found

    def constant(text: str) -> Any:
        raise ValueError(f"{text} is not JSON")

    if raw[:1] != b"{":
        return {}, ["the header does not begin with {"]
    if raw.count(b",") > MAX_COMMAS:
        return {}, [f"the header holds more than {MAX_COMMAS} values"]
    try:
        text = raw.decode("utf-8")
        document = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        return {}, [f"the header is not JSON: {str(error)[:200]}"]
    return document, problems


def _metadata(value: Any, problems: list[str]) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        problems.append("__metadata__ is not an object of strings")
        return {}
    return value


def _is_integer(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_DIMENSION


def _entry(key: str, value: Any, problems: list[str]) -> HeaderEntry | None:
    name = repr(key[:200])
    if not isinstance(value, dict) or value.keys() != _FIELDS:
        problems.append(f"{name}: not an object of exactly dtype, shape and data_offsets")
        return None
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    found = len(problems)
    element = SAFETENSORS_DTYPES.get(dtype) if isinstance(dtype, str) else None
    if element is None:
        problems.append(f"{name}: unknown dtype {str(dtype)[:40]!r}")
    if not (isinstance(shape, list) and len(shape) <= MAX_RANK and all(map(_is_integer, shape))):
        problems.append(f"{name}: shape is not a list of at most {MAX_RANK} sizes")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(map(_is_integer, offsets))):
        problems.append(f"{name}: data_offsets is not a pair of offsets")
    if not key or not _encodable(key):
        problems.append(f"{name}: not a usable key")
    if len(problems) > found or element is None:
        return None
    begin, end = offsets
    expected = math.prod(shape) * element.num_bytes
    if end - begin != expected:
        problems.append(
            f"{name}: {dtype} of shape {shape} needs {expected} bytes, "
            f"its range [{begin}, {end}) has {end - begin}"
        )
    return HeaderEntry(key, element.torch_name, tuple(shape), begin, end)


def _encodable(key: str) -> bool:
    # JSON can spell a lone surrogate, which no UTF-8 file (such as a manifest) can hold.
    try:
        key.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check_tiling(entries: list[HeaderEntry], data_bytes: int, problems: list[str]) -> None:
    frontier = 0
    for entry in entries:
        name = repr(entry.key[:200])
        if entry.end > data_bytes:
            problems.append(
                f"{name}: range [{entry.begin}, {entry.end}) leaves the {data_bytes} data bytes"
            )
        if entry.begin < frontier:
            problems.append(f"{name}: overlaps the bytes before {frontier}")
        elif entry.begin > frontier:
            problems.append(f"{name}: a hole [{frontier}, {entry.begin}) lies before it")
        frontier = max(frontier, entry.end)
    if frontier != data_bytes:
        problems.append(
            f"the header describes {frontier} data bytes, the file has {data_bytes} "
            f"({'truncated' if frontier > data_bytes else 'trailing bytes'})"
        )

"""Canonical JSON, prefixed digests and durable writes: how bytes get a name here.

Knows nothing of what the bytes mean. Reading is strict: duplicate keys, NaN and Infinity, a byte
order mark, integers beyond 2**53 and deep nesting are refused, since two readers could disagree
about them and a digest would then bind two meanings.
"""

import hashlib
import json
import math
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import rfc8785

from harness.errors import InvalidInputError

MAX_INTEGER = 2**53
MAX_DEPTH = 64
MAX_COMMAS = 20_000_000
"""Bounds the values of a document, and so the time and memory it takes to parse one."""
_DIGEST = re.compile(r"\A(?:sha256:[0-9a-f]{64}|xxh3-128:[0-9a-f]{32})\Z")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_BESIDE_BRACKETS = bytes(byte for byte in range(256) if byte not in b'"[]{}')
_CHUNK_BYTES = 1 << 20


def canonical_bytes(document: Any) -> bytes:
    """Serialize ``document`` by RFC 8785 (JSON Canonicalization Scheme), without a newline."""
    return _plain_bytes(document) or _any_bytes(document)


def _plain_bytes(document: Any) -> bytes | None:
    """The canonical bytes where the standard library writes them as RFC 8785 does, several times
    as fast: text, truth values, integers that a double holds, and keys in ASCII, which sort alike
    by code point and by UTF-16 unit. ``None`` for all else, such as a number with a fraction.
    """
    try:
        text = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        # Only now, as what was written has an end.
        return text.encode() if _is_plain(document) else None
    except (TypeError, ValueError, RecursionError):
        return None


def _is_plain(document: Any) -> bool:
    left = [document]
    while left:
        value = left.pop()
        kind = type(value)
        if kind is dict:
            if not all(type(key) is str and key.isascii() for key in value):
                return False
            left.extend(value.values())
        elif kind is list or kind is tuple:
            left.extend(value)
        elif kind is int:
            if not -MAX_INTEGER < value < MAX_INTEGER:
                return False
        elif kind is not str and kind is not bool and value is not None:
            return False
    return True


def _any_bytes(document: Any) -> bytes:
    try:
        return rfc8785.dumps(document)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidInputError(
            "document has no canonical form",
            expected="JSON values with finite numbers and integers up to 2**53",
            got=str(error),
        ) from error


def sha256_digest(data: bytes | bytearray | memoryview) -> str:
    """Return ``sha256:<hex>`` of ``data``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """Return ``sha256:<hex>`` of a file's bytes, read in bounded pieces."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def is_digest(text: object) -> bool:
    """Whether ``text`` is one whole prefixed digest (a trailing newline is not part of one)."""
    return isinstance(text, str) and _DIGEST.match(text) is not None


def bare_hex(digest: str) -> str:
    """Return the hex part of a ``sha256:`` digest, for file names and sidecars."""
    if not is_digest(digest) or not digest.startswith("sha256:"):
        raise InvalidInputError("not a digest", expected="sha256:<64 hex digits>", got=repr(digest))
    return digest.removeprefix("sha256:")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = sorted(name for name, count in counts.items() if count > 1)
        raise ValueError(f"duplicate keys {repeated}")
    return document


def _integer(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > MAX_INTEGER:
        raise ValueError(f"integer {text[:24]} is beyond 2**53")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text[:24]} is not finite")
    return value


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _check_depth(data: bytes, limit: int) -> None:
    # Counts brackets outside strings before the parser recurses over them. Possessive, and an
    # unterminated string is taken whole, so that hostile escapes cost linear time.
    if b"\\" not in data:
        data = data.translate(None, _BESIDE_BRACKETS)  # what is left says the same, and is short
    depth = 0
    for mark in _BRACKET.findall(_STRING.sub(b"", data)):
        if mark in b"[{":
            depth += 1
            if depth > limit:
                raise ValueError(f"nested deeper than {limit} levels")
        else:
            depth -= 1


def parse_json(data: bytes, *, where: str, max_bytes: int = 256 << 20) -> Any:
    """Parse strict JSON.

    Args:
        data: UTF-8 bytes without a byte order mark.
        where: What is being read, for the error message.
        max_bytes: Refuse anything longer, before it is decoded.

    Raises:
        InvalidInputError: On anything two readers could disagree about.
    """
    try:
        if len(data) > max_bytes:
            raise ValueError(f"{len(data)} bytes, more than {max_bytes}")
        if data.count(b",") > MAX_COMMAS:
            raise ValueError(f"more than {MAX_COMMAS} commas")
        if data.startswith(b"\xef\xbb\xbf"):
            raise ValueError("starts with a byte order mark")
        text = data.decode("utf-8")
        _check_depth(data, MAX_DEPTH)
        return json.loads(
            text,
            object_pairs_hook=_pairs,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_constant,
        )
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(
            "not strict JSON",
            expected="UTF-8 JSON, unique keys, finite numbers, integers up to 2**53",
            got=str(error),
            where=where,
            hint="restore the file or make it anew; what is frozen or recorded is never edited",
        ) from error


def read_json(path: Path, *, max_bytes: int = 256 << 20) -> Any:
    """Read and parse one strict JSON file (see :func:`parse_json`)."""
    return parse_json(read_bounded(path, max_bytes=max_bytes), where=str(path), max_bytes=max_bytes)


def read_bounded(path: Path, *, max_bytes: int) -> bytes:
    """Read a regular file of at most ``max_bytes`` bytes."""
    try:
        if not path.is_file():
            raise InvalidInputError("not a file", where=str(path), hint="check the path")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise InvalidInputError("cannot read file", got=str(error), where=str(path)) from error
    if len(data) > max_bytes:
        raise InvalidInputError(
            "file is too long", expected=f"at most {max_bytes} bytes", where=str(path)
        )
    return data


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Serialize rows as canonical JSON Lines, each line one RFC 8785 object."""
    return b"".join(canonical_bytes(dict(row)) + b"\n" for row in rows)


def write_durable(path: Path, data: bytes) -> None:
    """Write ``data`` under a name that never shows a partial file and is never overwritten.

    Temporary file in the same folder, fsync, link to the final name, unlink, fsync of the folder.

    Raises:
        FileExistsError: When ``path`` exists with other bytes; equal bytes are accepted.
    """
    make_durable_folder(path.parent)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            # What is no regular file could block whoever reads it, or have no end.
            if path.is_symlink() or not path.is_file() or path.read_bytes() != data:
                raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def make_durable_folder(folder: Path) -> None:
    """Make a folder and those above it where they are missing; each outlives a loss of power."""
    if not folder.is_dir():
        make_durable_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""What a producer and its witness tell each other: declared arenas and readings.

Records with their JSON form and its strict check. Knows neither sockets nor ``/proc``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import InvalidInputError

_POINT = re.compile(r"\A[a-z][a-z0-9_]{0,63}\Z")
MAX_ID_CHARACTERS = 512


@dataclass(frozen=True, kw_only=True)
class DeclaredArena:
    """One planned mapping, as the producer declares it: [address, address + length)."""

    materialization_id: str
    memory_resource_id: str
    address: int
    length: int
    """Bytes in whole pages: the mapping's size, not the tensors'."""

    def to_document(self) -> dict[str, Any]:
        """The JSON form inside a request."""
        return {
            "materialization_id": self.materialization_id,
            "memory_resource_id": self.memory_resource_id,
            "address": self.address,
            "length": self.length,
        }


@dataclass(frozen=True, kw_only=True)
class ArenaReading:
    """What ``/proc`` shows where an arena was declared."""

    materialization_id: str
    mapped_bytes: int
    """0 when that mapping no longer exists, also when another one has taken its address."""
    resident_bytes: int


@dataclass(frozen=True, kw_only=True)
class CheckpointRequest:
    """A request for one reading."""

    point: str
    arenas: tuple[DeclaredArena, ...]
    max_rss_bytes: int | None
    """``ru_maxrss`` as the producer itself reports it."""
    keep: bool
    """Whether the reading becomes a table row; a probe of a planted canary does not."""

    def to_document(self) -> dict[str, Any]:
        """The JSON form sent to the witness."""
        return {
            "request": "checkpoint",
            "point": self.point,
            "arenas": [arena.to_document() for arena in self.arenas],
            "max_rss_bytes": self.max_rss_bytes,
            "keep": self.keep,
        }


@dataclass(frozen=True, kw_only=True)
class WitnessReading:
    """One reading of a process's pages and open files."""

    unplanned_bytes: int
    """Growth over the baseline outside the declared arenas (see :mod:`harness.measure.pages`)."""
    private_anonymous_bytes: int
    shared_anonymous_bytes: int
    memfd_bytes: int
    new_file_bytes: int
    new_files: tuple[str, ...]
    checkpoint_descriptors: tuple[str, ...]
    checkpoint_mappings: tuple[str, ...]
    vm_rss_bytes: int
    uss_bytes: int
    arenas: tuple[ArenaReading, ...]

    def to_document(self) -> dict[str, Any]:
        """The JSON form of a reply."""
        document = {name: getattr(self, name) for name in (*_READING_SIZES, *_READING_NAMES)}
        document.update({name: list(document[name]) for name in _READING_NAMES})
        document["arenas"] = [
            {name: getattr(arena, name) for name in _ARENA_READING} for arena in self.arenas
        ]
        return document


_READING_SIZES = (
    "unplanned_bytes",
    "private_anonymous_bytes",
    "shared_anonymous_bytes",
    "memfd_bytes",
    "new_file_bytes",
    "vm_rss_bytes",
    "uss_bytes",
)
_READING_NAMES = ("new_files", "checkpoint_descriptors", "checkpoint_mappings")
_ARENA_READING = ("materialization_id", "mapped_bytes", "resident_bytes")
_ARENA_DECLARATION = ("materialization_id", "memory_resource_id", "address", "length")
_REQUEST = ("request", "point", "arenas", "max_rss_bytes", "keep")


def _refuse(what: str, expected: str, got: object) -> InvalidInputError:
    return InvalidInputError(f"bad {what}", expected=expected, got=repr(got)[:200])


def _fields(document: object, names: tuple[str, ...], what: str) -> Mapping[str, Any]:
    if not isinstance(document, dict) or document.keys() != set(names):
        got = sorted(document) if isinstance(document, dict) else document
        raise _refuse(what, f"an object with exactly {', '.join(names)}", got)
    return document


def _size(value: object, what: str, minimum: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise _refuse(what, f"an integer of at least {minimum}", value)
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARACTERS:
        raise _refuse(what, f"a string of 1 to {MAX_ID_CHARACTERS} characters", value)
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _refuse(what, "a list", value)
    return value


def _declaration(document: object) -> DeclaredArena:
    fields = _fields(document, _ARENA_DECLARATION, "arena")
    return DeclaredArena(
        materialization_id=_text(fields["materialization_id"], "materialization_id"),
        memory_resource_id=_text(fields["memory_resource_id"], "memory_resource_id"),
        address=_size(fields["address"], "address", 1),
        length=_size(fields["length"], "length", 1),
    )


def parse_request(document: Mapping[str, Any]) -> CheckpointRequest:
    """Check and read a checkpoint request.

    Raises:
        InvalidInputError: Naming the first field that is not as expected.
    """
    fields = _fields(document, _REQUEST, "request")
    if not isinstance(fields["point"], str) or not _POINT.match(fields["point"]):
        raise _refuse("point", "lower case letters, digits and _", fields["point"])
    if not isinstance(fields["keep"], bool):
        raise _refuse("keep", "true or false", fields["keep"])
    arenas = tuple(_declaration(item) for item in _list(fields["arenas"], "arenas"))
    ids = [arena.materialization_id for arena in arenas]
    if len(set(ids)) != len(ids):
        repeated = sorted({name for name in ids if ids.count(name) > 1})
        raise _refuse("arenas", "each materialization once", repeated)
    peak = fields["max_rss_bytes"]
    return CheckpointRequest(
        point=fields["point"],
        arenas=arenas,
        max_rss_bytes=None if peak is None else _size(peak, "max_rss_bytes"),
        keep=fields["keep"],
    )


def _arena_reading(document: object) -> ArenaReading:
    fields = _fields(document, _ARENA_READING, "arena reading")
    return ArenaReading(
        materialization_id=_text(fields["materialization_id"], "materialization_id"),
        mapped_bytes=_size(fields["mapped_bytes"], "mapped_bytes"),
        resident_bytes=_size(fields["resident_bytes"], "resident_bytes"),
    )


def parse_reading(document: Mapping[str, Any]) -> WitnessReading:
    """Check and read a reply.

    Raises:
        InvalidInputError: Naming the first field that is not as expected.
    """
    fields = _fields(document, (*_READING_SIZES, *_READING_NAMES, "arenas"), "reading")
    sizes = {name: _size(fields[name], name) for name in _READING_SIZES}
    names = {
        name: tuple(_text(item, name) for item in _list(fields[name], name))
        for name in _READING_NAMES
    }
    arenas = tuple(_arena_reading(item) for item in _list(fields["arenas"], "arenas"))
    return WitnessReading(**sizes, **names, arenas=arenas)  # type: ignore[arg-type]

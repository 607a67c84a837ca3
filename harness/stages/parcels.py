"""Parcels between the machines of a chain: a short note, and files, each with its digest.

    note and listing, one message of a fixed size -> the bytes of each file, in pieces

A receiver takes no size beyond its own bounds, writes no name that it does not allow, and compares
the digest of what came with the one that was announced. Knows files, not what is in them.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.canonical import file_digest, is_digest
from harness.errors import InvalidInputError
from harness.stages.errors import PeerError
from harness.stages.messages import decode, empty_message, encode
from harness.stages.transport import Transport

PIECE_BYTES = 4 << 20
MAX_FILES = 48
MAX_FILE_BYTES = 256 << 20
MAX_PARCEL_BYTES = 1 << 30
_NAME = re.compile(r"\A[a-z][a-z0-9_]{0,60}\.[a-z]{1,12}\Z")


@dataclass(frozen=True, kw_only=True)
class Enclosed:
    """One file of a parcel, as its sender announces it."""

    name: str
    num_bytes: int
    digest: str


def send_parcel(
    transport: Transport, to: int, note: Mapping[str, Any], files: Sequence[Path]
) -> None:
    """Send a note and files, which must not change meanwhile.

    Raises:
        InvalidInputError: When the note is too long, or there are too many files.
        PeerError: When the machine is gone, or does not take it in time.
    """
    enclosed = [
        Enclosed(name=path.name, num_bytes=path.stat().st_size, digest=file_digest(path))
        for path in files
    ]
    listing = [[each.name, each.num_bytes, each.digest] for each in enclosed]
    transport.send(encode({"note": dict(note), "files": listing}), to, "a parcel")
    for path in files:
        with path.open("rb") as stream:
            while piece := stream.read(PIECE_BYTES):
                data = torch.frombuffer(bytearray(piece), dtype=torch.uint8)
                transport.send(data, to, f"{path.name} of a parcel")


def receive_parcel(
    transport: Transport, source: int, folder: Path, *, idle_s: float
) -> dict[str, Any]:
    """Receive one parcel's files into a new folder; returns its note.

    Args:
        transport: Of this machine.
        source: The sender.
        folder: Made here.
        idle_s: Bound on the wait until a parcel comes at all.

    Raises:
        PeerError: When the machine is gone or silent, or sends what is no parcel, is too large, or
            has another digest than announced.
    """
    message = empty_message()
    transport.receive(message, source, "a parcel", timeout_s=idle_s)
    try:
        document = decode(message, where=f"machine {source}")
        enclosed = list(_enclosed(document))
    except InvalidInputError as error:
        raise _refused(source, error.got or error.problem) from error
    folder.mkdir(parents=True)
    for each in enclosed:
        _receive_file(transport, source, folder / each.name, each)
    note: dict[str, Any] = document["note"]
    return note


def _enclosed(document: Mapping[str, Any]) -> Iterator[Enclosed]:
    """The listing of a parcel, within bounds.

    Raises:
        InvalidInputError: When it is none, or goes beyond them.
    """
    files = document.get("files")
    if document.keys() != {"note", "files"} or type(document["note"]) is not dict:
        raise InvalidInputError("not a parcel", got="no note and listing")
    if type(files) is not list or len(files) > MAX_FILES:
        raise InvalidInputError("not a parcel", got=f"not at most {MAX_FILES} files")
    names: set[str] = set()
    total = 0
    for entry in files:
        if type(entry) is not list or [type(part) for part in entry] != [str, int, str]:
            raise InvalidInputError("not a parcel", got="a file without name, size and digest")
        name, num_bytes, digest = entry
        total += max(num_bytes, 0)
        if _NAME.match(name) is None or name in names:
            raise InvalidInputError("not a parcel", got=f"a file named {name[:80]!r}")
        if not 0 <= num_bytes <= MAX_FILE_BYTES or total > MAX_PARCEL_BYTES:
            raise InvalidInputError("not a parcel", got=f"{name} of {num_bytes} bytes")
        if not is_digest(digest):
            raise InvalidInputError("not a parcel", got=f"{name} without a digest")
        names.add(name)
        yield Enclosed(name=name, num_bytes=num_bytes, digest=digest)


def _receive_file(transport: Transport, source: int, path: Path, enclosed: Enclosed) -> None:
    left, hashed = enclosed.num_bytes, hashlib.sha256()
    with path.open("xb") as stream:
        while left:
            piece = torch.empty(min(left, PIECE_BYTES), dtype=torch.uint8)
            transport.receive(piece, source, f"{enclosed.name} of a parcel")
            data = piece.numpy().data
            hashed.update(data)
            stream.write(data)
            left -= len(data)
    got = f"sha256:{hashed.hexdigest()}"
    if got != enclosed.digest:
        raise _refused(source, f"{enclosed.name} arrived as {got}, announced as {enclosed.digest}")


def _refused(source: int, got: str) -> PeerError:
    return PeerError(
        f"machine {source} sent what is not taken",
        expected="a note and files within the bounds, each with the digest that was announced",
        got=got,
        where=f"a parcel of machine {source}",
    )

"""A store among the objects of a service that ``fsspec`` reaches, such as S3.

An object appears whole or not at all. Listings are never cached, since others write too. Knows
``fsspec``'s interface, no service.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.errors import EvidenceError
from harness.evidence.remote.remote import MAX_NAMES, PIECE_BYTES, reaching, too_many


@dataclass(frozen=True, kw_only=True)
class ObjectRemote:
    """Objects below one prefix, in the layout of a store."""

    url: str
    prefix: str
    """The prefix as the file system writes it, such as ``bucket/path``."""
    system: Any
    """An ``fsspec.AbstractFileSystem``."""

    def names(self, folder: str) -> dict[str, int]:
        """Objects of one folder."""
        path = f"{self.prefix}/{folder}"
        with reaching(f"{self.url}/{folder}"):
            try:
                listed = self.system.ls(path, detail=True)
            except FileNotFoundError:
                return {}
        if len(listed) > MAX_NAMES:
            raise too_many(self.url, folder)
        found = {}
        for entry in listed:
            name = str(entry["name"])
            # What does not lie right below the folder is nothing of it, whatever it says.
            if entry.get("type") == "file" and name.startswith(f"{path}/"):
                found[name.removeprefix(f"{path}/")] = int(entry["size"])
        return found

    def size(self, name: str) -> int | None:
        """Size of an object."""
        with reaching(f"{self.url}/{name}"):
            try:
                entry = self.system.info(f"{self.prefix}/{name}")
            except FileNotFoundError:
                return None
            return int(entry["size"]) if entry.get("type") == "file" else None

    def pieces(self, name: str, size_bytes: int) -> Iterator[bytes]:
        """The bytes of an object, one request each."""
        for start in range(0, size_bytes, PIECE_BYTES):
            end = min(start + PIECE_BYTES, size_bytes)
            with reaching(f"{self.url}/{name}"):
                piece = self.system.cat_file(f"{self.prefix}/{name}", start=start, end=end)
            if len(piece) != end - start:
                raise EvidenceError(
                    "remote file has another length than it was said to have",
                    expected=f"{end - start} bytes at {start}",
                    got=f"{len(piece)} bytes",
                    where=f"{self.url}/{name}",
                )
            yield bytes(piece)

    def put(self, name: str, data: bytes, *, replace: bool = False) -> None:
        """Write an object. Objects that are not to be replaced have one content for their name."""
        with reaching(f"{self.url}/{name}"):
            self.system.pipe_file(f"{self.prefix}/{name}", data)

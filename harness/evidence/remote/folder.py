"""A store in a folder, such as one of another disk or of a network file system.

Written as every store is: durably, and never to be seen in part. Links are not followed.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from harness.canonical import make_durable_folder, sync_folder, write_durable
from harness.errors import EvidenceError
from harness.evidence.files import open_regular, refuse_linked_folder, writing
from harness.evidence.remote.remote import MAX_NAMES, NO_FILE, PIECE_BYTES, reaching, too_many


@dataclass(frozen=True, kw_only=True)
class FolderRemote:
    """A folder in the layout of a store."""

    root: Path

    @property
    def url(self) -> str:
        """The folder's path."""
        return str(self.root)

    def names(self, folder: str) -> dict[str, int]:
        """Everything in one folder; what is no regular file has the size ``NO_FILE``."""
        path = self.root / folder
        with reaching(str(path)):
            refuse_linked_folder(path)
            if not path.is_dir():
                return {}
            with os.scandir(path) as entries:
                listed = [entry.name for entry in islice(entries, MAX_NAMES + 1)]
            if len(listed) > MAX_NAMES:
                raise too_many(self.url, folder)
            sizes = {name: _listed_size(path / name) for name in listed}
        return {name: size for name, size in sizes.items() if size is not None}

    def size(self, name: str) -> int | None:
        """Size of a regular file.

        Raises:
            EvidenceError: When anything else stands there.
        """
        path = self.root / name
        with reaching(str(path)):
            refuse_linked_folder(path.parent)
            size = _size(path)
            if size is None and os.path.lexists(path):
                raise EvidenceError(
                    "not a regular file", expected="a regular file", where=str(path)
                )
            return size

    def pieces(self, name: str, size_bytes: int) -> Iterator[bytes]:
        """The bytes of a regular file."""
        left = size_bytes
        with reaching(str(self.root / name)), open_regular(self.root / name) as file:
            while left and (piece := file.read(min(left, PIECE_BYTES))):
                left -= len(piece)
                yield piece

    def put(self, name: str, data: bytes, *, replace: bool = False) -> None:
        """Write a file durably, in one step.

        Raises:
            EvidenceError: When it holds other bytes and is not to be replaced.
        """
        path = self.root / name
        refuse_linked_folder(path.parent)
        with writing(path):
            if replace:
                _replace(path, data)
            else:
                write_durable(path, data)


def _listed_size(path: Path) -> int | None:
    """Size of a regular file, or ``NO_FILE``; ``None`` for what is gone by now."""
    size = _size(path)
    return NO_FILE if size is None and os.path.lexists(path) else size


def _size(path: Path) -> int | None:
    """Size of a regular file; ``None`` for anything else, and for nothing."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _replace(path: Path, data: bytes) -> None:
    make_durable_folder(path.parent)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)

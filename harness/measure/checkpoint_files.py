"""Recognizes a checkpoint's files among the open descriptors and mappings of a process.

A file is known by its resolved path, and by device and inode, so that a link to it from elsewhere
is found too. Knows nothing of what is inside the files.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from harness.errors import InvalidInputError
from harness.measure.proc import Descriptor, MemoryMapping

MAX_CHECKPOINT_FILES = 100_000
_DELETED = " (deleted)"


class CheckpointFiles:
    """The files below one root (or the one file that the root is).

    Args:
        root: A folder or a file; links are resolved.

    Raises:
        InvalidInputError: When the root does not exist or holds absurdly many files.
    """

    def __init__(self, root: Path) -> None:
        try:
            self._root = root.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise InvalidInputError(
                "no checkpoint there", got=str(error), where=str(root), hint="check the path"
            ) from error
        self._by_path: dict[str, str] = {}
        self._by_identity: dict[tuple[int, int, int], str] = {}
        if self._root.is_file():
            self._add(self._root, self._root.name)
        else:
            self._add_folder()

    def _add(self, path: Path, name: str) -> None:
        if len(self._by_path) >= MAX_CHECKPOINT_FILES:
            raise InvalidInputError(
                "too many files for a checkpoint",
                expected=f"at most {MAX_CHECKPOINT_FILES} files",
                where=str(self._root),
            )
        try:
            status = path.stat()
        except OSError:  # a dangling link cannot be open through this name
            return
        self._by_path[str(path.resolve())] = name
        device = (os.major(status.st_dev), os.minor(status.st_dev))
        self._by_identity[(*device, status.st_ino)] = name

    def _add_folder(self) -> None:
        for folder, _, names in os.walk(self._root):
            for name in names:
                path = Path(folder, name)
                self._add(path, path.relative_to(self._root).as_posix())

    def _name(self, path: str, identity: tuple[int, int, int]) -> str | None:
        path = path.removesuffix(_DELETED)
        if path in self._by_path:
            return self._by_path[path]
        if path.startswith(f"{self._root}/"):  # made since, or replaced
            return path.removeprefix(f"{self._root}/")
        return self._by_identity.get(identity)

    def among_descriptors(self, descriptors: Iterable[Descriptor]) -> tuple[str, ...]:
        """Names of open checkpoint files, sorted, one for each descriptor."""
        names = (self._name(found.path, found.identity) for found in descriptors)
        return tuple(sorted(name for name in names if name is not None))

    def among_mappings(self, mappings: Iterable[MemoryMapping]) -> tuple[str, ...]:
        """Names of mapped checkpoint files, sorted, each once."""
        found = {
            self._name(mapping.path, mapping.identity) for mapping in mappings if mapping.inode
        }
        return tuple(sorted(name for name in found if name is not None))

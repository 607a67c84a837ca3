"""Reads that must not happen while the plan is sealed: of the plan, and of the checkpoint.

Two ways in are counted for each: through the object that set-up used (the sealed plan, the bounded
reader), and past it, by opening the very file under any name. Python's audit events show the
latter for every open through the interpreter; what native code opens by itself is not seen.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.checkpoint.reader import BoundedReader, SourceAccessError
from harness.realize.seal import Seal
from harness.realize.sentinels import FunctionSentinel, Sentinel


class OpenedFiles:
    """Counts opens of certain files, by device and inode, while armed."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._inodes = {_inode(path) for path in self._paths}
        self._is_armed = False
        self.num_opens = 0
        sys.addaudithook(self._hear)

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Count within the context."""
        self._is_armed = True
        try:
            yield
        finally:
            self._is_armed = False

    def touch(self) -> None:
        """Open one of the files, counted: the canary."""
        with self.armed(), self._paths[0].open("rb"):
            pass

    def _hear(self, event: str, args: tuple[object, ...]) -> None:
        # A hook can never be removed: out of the armed spans it must cost next to nothing.
        if not self._is_armed or event != "open":
            return
        name = args[0]
        if isinstance(name, str | bytes | os.PathLike) and _inode(name) in self._inodes:
            self.num_opens += 1


def _inode(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def plan_accesses(seal: Seal, touch: Callable[[], object], files: OpenedFiles) -> Sentinel:
    """Accesses of the sealed plan, and opens of its file; ``touch`` reads one field of it."""

    @contextmanager
    def plant() -> Iterator[None]:
        before, was_closed, opens = seal.num_accesses, seal.closed, files.num_opens
        seal.close()
        touch()
        files.touch()
        try:
            yield
        finally:
            seal.num_accesses, seal.closed, files.num_opens = before, was_closed, opens

    return FunctionSentinel(
        name="plan_accesses", counter=lambda: seal.num_accesses + files.num_opens, plant=plant
    )


def source_accesses(
    reader: BoundedReader, key: str, buffer: Callable[[], memoryview], files: OpenedFiles
) -> Sentinel:
    """Reads of the sealed source that were refused, and opens of its files past it."""
    planted = 0

    @contextmanager
    def plant() -> Iterator[None]:
        nonlocal planted
        opens = files.num_opens
        with suppress(SourceAccessError):
            reader.read_into(key, buffer())
        files.touch()
        try:
            yield
        finally:
            planted += 1
            files.num_opens = opens

    return FunctionSentinel(
        name="source_accesses",
        counter=lambda: reader.num_refused - planted + files.num_opens,
        plant=plant,
    )

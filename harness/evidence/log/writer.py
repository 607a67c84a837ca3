"""Appending to a store's log: each writer to a shard of its own, durable before it returns.

A writer is one thread of one process that writes through one store object. Its shard's id is drawn
at random and says nothing of who or where it is; nobody else ever appends to that shard, so writers
need no lock and branches of a store merge as the union of their shards. Knows files and leaves.
"""

import contextlib
import os
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path

from harness.canonical import make_durable_folder, sync_folder
from harness.evidence.log.shard import LOG_FOLDER, MAX_SHARD_BYTES, Leaf, shard_path

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class ShardWriter:
    """Appends leaves to shards that are this writer's own."""

    def __init__(self) -> None:
        self._paths: dict[tuple[Path, int, int], Path] = {}

    def append(self, root: Path, leaves: Sequence[Leaf]) -> None:
        """Append leaves with one write, synced; after a failure the shard is as it was before.

        Raises:
            OSError: When they cannot be written. The next call begins a new shard.
        """
        if not leaves:
            return
        data = b"".join(leaf.encode() + b"\n" for leaf in leaves)
        # A forked child and another thread have shards of their own.
        key = (root, os.getpid(), threading.get_ident())
        path = self._paths.pop(key, None)
        if path is None or not _has_room(path, len(data)):
            path = shard_path(root, secrets.token_hex(16))
        append_durable(path, data)
        self._paths[key] = path


def _has_room(path: Path, num_bytes: int) -> bool:
    try:
        return path.lstat().st_size + num_bytes <= MAX_SHARD_BYTES
    except OSError:
        return False  # somebody removed it; its id must not come back with other leaves


def append_durable(path: Path, data: bytes) -> None:
    """Append bytes to a file, made where there is none, and sync both file and folder.

    Raises:
        OSError: When they cannot be written; what was written of them is taken off again.
    """
    descriptor = os.open(path, _FLAGS, 0o644)
    try:
        before = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
            sync_folder(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, before)
                if before == 0:
                    os.unlink(path)
            raise
    finally:
        os.close(descriptor)


def cut_torn_line(path: Path, num_bytes: int) -> None:
    """Shorten a shard to its complete lines, ``num_bytes`` long."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.ftruncate(descriptor, num_bytes)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def start_log(root: Path) -> None:
    """Make the folder of a store's log, durably; from then on the store keeps one."""
    make_durable_folder(root / LOG_FOLDER)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]

"""Opening checkpoint files: only regular ones, only under the root, and never a changed one.

Names come from plans and indexes, so they are hostile until they are checked here. Knows nothing
of what the files hold.
"""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.errors import CheckpointError

MAX_LISTED = 100
"""Problems listed in one message; the rest are counted."""


@dataclass(frozen=True, kw_only=True)
class FileIdentity:
    """What ``fstat`` says about an open file, to notice that it was changed or replaced."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int

    def __str__(self) -> str:
        return (
            f"{self.size_bytes} bytes, modified at {self.modified_ns} ns, "
            f"inode {self.device}:{self.inode}"
        )


def problems_error(
    problem: str, problems: Sequence[str], *, where: str, hint: str | None = None
) -> CheckpointError:
    """One error that lists every problem, sorted (a hostile file's list is cut, and says so)."""
    ordered = sorted(set(problems))
    listed = ordered[:MAX_LISTED]
    if len(ordered) > MAX_LISTED:
        listed.append(f"and {len(ordered) - MAX_LISTED} more")
    got = listed[0] if len(listed) == 1 else "".join(f"\n    - {line}" for line in listed)
    return CheckpointError(problem, got=got, where=where, hint=hint)


def identity(descriptor: int) -> FileIdentity:
    """Identity of an open file."""
    status = os.fstat(descriptor)
    return FileIdentity(
        device=status.st_dev,
        inode=status.st_ino,
        size_bytes=status.st_size,
        modified_ns=status.st_mtime_ns,
    )


def open_regular(path: Path) -> int:
    """Open a regular file for reading; returns the descriptor.

    Raises:
        CheckpointError: When it cannot be opened, or is a folder, pipe, socket or device.
    """
    try:
        # Without O_NONBLOCK the open of a pipe waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError("cannot open file", got=reason, where=str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(
            "not a regular file", expected="a regular file", got="another kind", where=str(path)
        )
    return descriptor


def read_exactly(descriptor: int, target: memoryview, offset: int) -> int:
    """Fill ``target`` (bytes) from ``offset``; returns the bytes read, fewer at the file's end."""
    filled = 0
    while filled < len(target):
        count = os.preadv(descriptor, [target[filled:]], offset + filled)
        if count == 0:
            break
        filled += count
    return filled


def shown(name: str) -> str:
    """A name from a file as a message may show it."""
    return name if name.isprintable() else repr(name)


def shard_problem(name: str, error: CheckpointError) -> str:
    """One line for a shard that could not be used."""
    return f"{shown(name)}: {error.problem}" + (f": {error.got}" if error.got else "")


def name_problem(name: str) -> str | None:
    """Why ``name`` cannot be a file's name under a root, or ``None``."""
    if not name or "\0" in name or not name.isprintable():
        return "is empty or has unprintable characters"
    if name.startswith("/") or "\\" in name:
        return "is not a relative path with forward slashes"
    if ".." in PurePosixPath(name).parts or name == ".":
        return "has a .. part, or is a folder itself"
    if str(PurePosixPath(name)) != name:
        return f"is not in its plain form {str(PurePosixPath(name))!r}"
    return None


def resolve_under(root: Path, name: str) -> Path:
    """Real path of ``name``, which must lie under ``root`` after every link is followed.

    Raises:
        CheckpointError: When the name is absolute, climbs, or a link leads out of the root.
    """
    problem = name_problem(name)
    if problem is not None:
        raise CheckpointError(
            f"file name {name!r} {problem}",
            expected="a relative path under the checkpoint's folder",
            where=str(root),
        )
    try:
        real_root = root.resolve(strict=True)
        real = (real_root / name).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"no file {name!r}", got=type(error).__name__, where=str(root)
        ) from error
    if not real.is_relative_to(real_root):
        raise CheckpointError(
            f"file {name!r} is a link that leads out of the checkpoint's folder",
            expected=f"a file under {real_root}",
            got=str(real),
            where=str(root),
            hint="download into a plain folder, not as links into a cache",
        )
    return real

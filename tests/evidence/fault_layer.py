"""A layer between the code under test and the system, where each change to a disk is one step.

Steps: ``create`` (a new file), ``write``, ``fsync``, ``link``, ``unlink``, ``mkdir``, ``truncate``.
A policy sees each step before it happens and decides what becomes of it. Also run in child
processes, where this folder is on the path.
"""

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Step:
    kind: str
    path: Path
    data: bytes = b""
    """What a write writes."""
    source: Path | None = None
    """What a link links to."""


Perform = Callable[..., Any]
"""Does what was asked; of a write also a part of it, when given that part."""
Policy = Callable[[Step, Perform], Any]


class WatchedFile:
    """A file opened for writing; what it is given reaches the system at once."""

    def __init__(self, file: Any, path: Path, policy: Policy) -> None:
        self.file = file
        self.path = path
        self.policy = policy

    def __enter__(self) -> "WatchedFile":
        return self

    def __exit__(self, *details: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: bytes) -> int:
        def perform(part: bytes = data) -> int:
            written = int(self.file.write(part))
            self.file.flush()
            return written

        written = self.policy(Step("write", self.path, data), perform)
        # Buffered files never write less than they were given; they ask the system again.
        return written if written == len(data) else written + self.write(data[written:])


@contextlib.contextmanager
def layer(policy: Policy) -> Iterator[None]:
    """Let every step pass through ``policy``."""
    real = {name: getattr(os, name) for name in ("open", "write", "fsync", "link", "unlink")}
    real |= {name: getattr(os, name) for name in ("mkdir", "ftruncate")}
    real_open = Path.open

    def path_of(descriptor: int) -> Path:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))

    def opened(path: Any, flags: int, mode: int = 0o777, **options: Any) -> Any:
        def perform() -> Any:
            return real["open"](path, flags, mode, **options)

        creates = flags & os.O_CREAT and not os.path.lexists(path)
        return policy(Step("create", Path(path)), perform) if creates else perform()

    def open_path(path: Path, mode: str = "r", **options: Any) -> Any:
        def perform() -> Any:
            return WatchedFile(real_open(path, mode, **options), path, policy)

        return (
            policy(Step("create", path), perform)
            if set(mode) & set("xwa")
            else (real_open(path, mode, **options))
        )

    def written(descriptor: int, data: Any) -> Any:
        whole = bytes(data)
        step = Step("write", path_of(descriptor), whole)
        return policy(step, lambda part=whole: real["write"](descriptor, part))

    def synced(descriptor: int) -> Any:
        return policy(Step("fsync", path_of(descriptor)), lambda: real["fsync"](descriptor))

    def linked(source: Any, path: Any, **options: Any) -> Any:
        step = Step("link", Path(path), source=Path(source))
        return policy(step, lambda: real["link"](source, path, **options))

    def truncated(descriptor: int, length: int) -> Any:
        step = Step("truncate", path_of(descriptor), b"%d" % length)
        return policy(step, lambda: real["ftruncate"](descriptor, length))

    def changed(name: str) -> Any:
        def change(path: Any, *args: Any, **options: Any) -> Any:
            step = Step(name, Path(path))
            return policy(step, lambda: real[name](path, *args, **options))

        return change

    with (
        mock.patch.multiple(
            os,
            open=opened,
            write=written,
            fsync=synced,
            link=linked,
            ftruncate=truncated,
            unlink=changed("unlink"),
            mkdir=changed("mkdir"),
        ),
        mock.patch.object(Path, "open", open_path),
    ):
        yield


class Fault:
    """Lets everything happen, but for one step.

    ``fail``: the step is refused. ``fail_from``: so is every later one. ``fail_after``: it happens,
    and is said to have failed. ``short``: half of a write happens, then the disk is full.
    ``partial``: half of it happens, and the caller is told so. ``kill``, ``kill_middle`` and
    ``kill_after``: the process dies. ``meanwhile``: ``other`` happens first.
    """

    def __init__(self, number: int, action: str, other: Callable[[], object] | None = None) -> None:
        self.number = number
        self.action = action
        self.other = other
        self.count = 0
        self.hit: Step | None = None

    def __call__(self, step: Step, perform: Perform) -> Any:
        self.count += 1
        if self.count < self.number or (self.count > self.number and self.action != "fail_from"):
            return perform()
        self.hit = self.hit or step
        result: Any = None
        half = step.data[: len(step.data) // 2]
        if self.action == "meanwhile":
            assert self.other is not None
            self.other()
            return perform()
        if self.action == "partial":
            return perform(half) if step.kind == "write" and half else perform()
        if self.action in ("short", "kill_middle") and step.kind == "write":
            perform(half)
        elif self.action in ("fail_after", "kill_after"):
            with contextlib.suppress(FileExistsError):
                result = perform()
        if self.action.startswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if step.kind == "create" and result is not None:
            result.close() if hasattr(result, "close") else os.close(result)
        code = errno.ENOSPC if self.action == "short" else errno.EIO
        raise OSError(code, os.strerror(code), str(step.path))


def num_steps(action: Callable[[], object]) -> int:
    """How many steps an action takes when nothing goes wrong."""
    counter = Fault(0, "none")
    with layer(counter):
        action()
    return counter.count

"""Writes the same evidence in one child process after another, killing child n at its n-th step.

Usage: killed_writer.py FOLDER WHAT, where WHAT is ``manifest`` (one file) or ``record`` (a record
and its verdict). Child n writes to FOLDER/n; the first child that reaches its end stops the loop,
and the number of killed children is printed.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import sample

from harness.evidence.store import Store


class Countdown:
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def step(self) -> None:
        self.steps -= 1
        if self.steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, function: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.step()
            result = function(*args, **kwargs)
            self.step()
            return result

        return wrapper


class HalvingFile:
    """A file that can be killed between the two halves of a write."""

    def __init__(self, file: Any, countdown: Countdown) -> None:
        self.file = file
        self.countdown = countdown

    def __enter__(self) -> "HalvingFile":
        return self

    def __exit__(self, *details: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: bytes) -> int:
        self.countdown.step()
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        self.countdown.step()
        return int(self.file.write(data[len(data) // 2 :]))


def write(root: Path, what: str, steps: int) -> None:
    countdown = Countdown(steps)
    for name in ("fsync", "link", "unlink", "mkdir"):
        setattr(os, name, countdown.around(getattr(os, name)))
    real_open = Path.open

    def open_file(path: Path, mode: str = "r", **kwargs: Any) -> Any:
        file = real_open(path, mode, **kwargs)
        return HalvingFile(file, countdown) if "x" in mode or "w" in mode else file

    Path.open = open_file  # type: ignore[method-assign,assignment]
    store = Store(root)
    if what == "manifest":
        store.put_manifest(sample.MANIFEST)
    else:
        sample.put_verdict(store, sample.put_record(store))


def main(folder: Path, what: str) -> None:
    for steps in range(1, 10_000):
        child = os.fork()
        if child == 0:
            write(folder / str(steps), what, steps)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            print(steps - 1)
            return
        if not os.WIFSIGNALED(status):
            sys.exit(f"child {steps} failed with status {status}")


main(Path(sys.argv[1]), sys.argv[2])

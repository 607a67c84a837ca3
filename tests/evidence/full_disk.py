"""Does an operation again and again, each time with a little more room, until nothing goes wrong.

Usage: full_disk.py FOLDER OPERATION HOW. HOW is ``disk`` (a file system in memory at FOLDER, with
0, 1, 2, ... free pages; needs the right to mount) or ``file`` (no file may grow beyond a limit).
After each failure the store is checked, room is made, and the operation is done once more. Prints
how often it failed before it did not.
"""

import errno
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fault_operations import OPERATIONS, check, check_again, contents

from harness.errors import NotEvaluableError

PAGE_BYTES = resource.getpagesize()
DISK_BYTES = 2 << 20
NO_ROOM = (f"[Errno {errno.ENOSPC}]", f"[Errno {errno.EFBIG}]")
FILE_STEP_BYTES = 300


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(PAGE_BYTES)):
                pass
        except OSError:
            return


@contextmanager
def little_room(folder: Path, how: str, number: int) -> Iterator[None]:
    if how == "file":
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (number * FILE_STEP_BYTES, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        return
    ballast = folder / "ballast"
    fill(ballast)
    with ballast.open("ab") as file:
        file.truncate(file.tell() // PAGE_BYTES * PAGE_BYTES - number * PAGE_BYTES)
    try:
        yield
    finally:
        ballast.unlink()


def main(folder: Path, name: str, how: str) -> None:
    if how == "disk":
        options = f"size={DISK_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    operation = OPERATIONS[name]
    with tempfile.TemporaryDirectory() as scratch:
        operation.prepare(Path(scratch))
        before = contents(Path(scratch) / "store")
        for number in range(200):
            work = folder / "work"
            shutil.copytree(scratch, work)
            failed = False
            with little_room(folder, how, number):
                try:
                    operation.act(work)
                except NotEvaluableError as error:
                    failed = True
                    if not str(error.got).startswith(NO_ROOM):
                        raise
                kinds = check(work / "store", before)
            if not failed:
                assert kinds <= ({"extra"} if name == "manifest" else set()), kinds
                print(number)
                return
            check_again(name, work, before, left=set())
            shutil.rmtree(work)
    sys.exit("it never succeeded")


main(Path(sys.argv[1]), *sys.argv[2:])

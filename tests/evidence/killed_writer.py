"""Does the same to one copy of a store after another, killing child n at its n-th step.

Usage: killed_writer.py FOLDER OPERATION [HOW], where OPERATION is one of ``fault_operations`` and
HOW is ``kill`` (the default: before the step), ``kill_middle`` (of a write) or ``kill_after``.
Child n works in FOLDER/n; the first child that reaches its end stops the loop, and the number of
killed children is printed.
"""

import os
import shutil
import sys
from pathlib import Path

from fault_layer import Fault, layer
from fault_operations import OPERATIONS


def main(folder: Path, name: str, how: str = "kill") -> None:
    operation = OPERATIONS[name]
    base = folder / "base"
    base.mkdir(parents=True)
    operation.prepare(base)
    for number in range(1, 10_000):
        work = folder / str(number)
        shutil.copytree(base, work)
        child = os.fork()
        if child == 0:
            with layer(Fault(number, how)):
                operation.act(work)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            print(number - 1)
            return
        if not os.WIFSIGNALED(status):
            sys.exit(f"child {number} failed with status {status}")


main(Path(sys.argv[1]), *sys.argv[2:])

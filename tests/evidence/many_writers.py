"""Starts many processes that each write one record into the same store at the same moment.

Usage: many_writers.py STORE NUMBER. Prints one line ``<number> <record digest>`` per process.
"""

import os
import sys
import tempfile
from pathlib import Path

import sample

from harness.evidence.store import Store


def main(root: Path, count: int) -> None:
    # What is loaded on first use is loaded once, before there are many of us.
    with tempfile.TemporaryDirectory() as scratch:
        sample.put_record(Store(Path(scratch)))
    gate_read, gate_write = os.pipe()
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            os.close(gate_write)
            os.read(gate_read, 1)  # returns when the parent closes its end
            record = sample.put_record(
                Store(root), salt=f" of {number}", experiment=f"job-{number}"
            )
            os.write(1, f"{number} {record}\n".encode())
            os._exit(0)
        children.append(child)
    os.close(gate_write)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        sys.exit("a writer failed")


main(Path(sys.argv[1]), int(sys.argv[2]))

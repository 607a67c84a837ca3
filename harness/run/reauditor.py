"""The auditor beside a verification: audits the records of one store that it is asked about.

One message asks for one record, one answers. It ends when nobody can ask any more. Reads evidence
files only, writes nothing, and imports no torch.
"""

import argparse
import gc
import socket
from pathlib import Path

from harness.adapters.families import layout_for
from harness.evidence.store import Store
from harness.measure.wire import receive, send
from harness.reconcile.reaudit import reaudit
from harness.run.child import run_child
from harness.run.reaudits import PATIENCE_S


def main() -> int:
    """Entry of the child process."""
    parser = argparse.ArgumentParser(description="audit records of a store, as they are asked for")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True, help="a connected stream socket")
    args = parser.parse_args()
    store = Store(args.store)
    gc.freeze()  # what is loaded stays, and need not be looked through again
    with socket.socket(fileno=args.fd) as sock:
        while (asked := receive(sock, timeout_s=PATIENCE_S)) is not None:
            found = reaudit(store, asked["record"], asked["verdict"], layout_for=layout_for)
            send(sock, found.message())
    return 0


if __name__ == "__main__":
    run_child(main)

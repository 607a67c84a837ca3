"""The supervisor's side of the witness: the socket pair and the start of the child.

Order: make the pair, start the producer with its end in ``pass_fds``, then start the witness for
the producer's process id, and close both ends here. A process that keeps an end open keeps the
other child from seeing that its peer has ended. Knows nothing of what is read.
"""

import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO


def witness_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected stream sockets: the producer's end and the witness's end.

    Neither is inherited unless it is passed by ``pass_fds``, which keeps its number.
    """
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def witness_argv(*, pid: int, fd: int, folder: Path, checkpoint_root: Path) -> tuple[str, ...]:
    """The command of a witness.

    Args:
        pid: The started producer.
        fd: Number of the witness's end, to be passed to the child.
        folder: Where it writes ``checkpoints.parquet`` and ``arenas.parquet``.
        checkpoint_root: Folder or file whose open descriptors and mappings are named.
    """
    options = {
        "--pid": pid,
        "--fd": fd,
        "--out": folder,
        "--checkpoint-root": checkpoint_root,
    }
    given = (str(part) for option in options.items() for part in option)
    return (sys.executable, "-m", "harness.measure.witness", *given)


def start_witness(
    *,
    pid: int,
    sock: socket.socket,
    folder: Path,
    checkpoint_root: Path,
    environment: Mapping[str, str] | None = None,
    stderr: int | IO[bytes] | None = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start the witness of process ``pid`` on its end ``sock``, and close that end here.

    Its exit codes are those of :mod:`harness.measure.witness`; ``stderr`` gets its one message.
    """
    with sock:
        return subprocess.Popen(
            witness_argv(pid=pid, fd=sock.fileno(), folder=folder, checkpoint_root=checkpoint_root),
            pass_fds=(sock.fileno(),),
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )

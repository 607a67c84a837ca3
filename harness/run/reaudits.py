"""A second process that audits records while this one does, and what becomes of its answers.

Loads little, so that the process can be started before anything heavy is loaded here. Knows how to
ask, not what an audit is. A process that ends without an answer is an error and never silence.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, NotEvaluableError
from harness.measure.wire import receive, send
from harness.run.child import CRASHED
from harness.run.processes import Child, child_environment

PATIENCE_S = 86400.0
"""How long either end waits for the other's message: an audit's time is bounded by its record's
size, and the end of a process is seen at once."""
_END_S = 10.0


class Reauditor:
    """The process, from its start to its end; one question at a time."""

    def __init__(self, store: Path) -> None:
        theirs, self._sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                self._child = Child(
                    "auditor",
                    [
                        *(sys.executable, "-m", "harness.run.reauditor"),
                        *("--store", str(store), "--fd", str(theirs.fileno())),
                    ],
                    environment=child_environment(num_threads=1),
                    on_line=lambda line: None,
                    pass_fds=(theirs.fileno(),),
                )
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> "Reauditor":
        return self

    def __exit__(self, *exception: object) -> None:
        self._child.end()
        self._sock.close()

    @property
    def process_id(self) -> int:
        """Of the process, also once it has ended."""
        return self._child.process.pid

    def ask(self, record: str, verdict: str | None) -> dict[str, Any]:
        """What it found in one record, as ``Reaudit.message`` puts it.

        Args:
            record: The record's digest.
            verdict: Digest of its newest verdict, or ``None``.

        Raises:
            NotEvaluableError: When the process gave no answer, with what became of it.
            RuntimeError: When it ended by an error of its program.
        """
        try:
            send(self._sock, {"record": record, "verdict": verdict})
            answer = receive(self._sock, timeout_s=PATIENCE_S)
            got = ""
        except (HarnessError, OSError) as error:
            answer, got = None, f"{type(error).__name__}: {error}"
        if answer is not None and answer.get("record") == record:
            return answer
        outcome = self._child.wait(_END_S)
        how = outcome.signal or f"exit code {outcome.exit_code}"
        told = (f"{outcome.outcome} ({how})", outcome.message, got)
        if outcome.exit_code == CRASHED:
            raise RuntimeError("; ".join(part for part in told if part))
        raise NotEvaluableError(
            "the process that audited this record gave no answer",
            expected="an audit",
            got="; ".join(part for part in told if part),
            where=record,
        )


def is_worth_it(store: Path) -> bool:
    """Whether there are two records and two cores to audit them on."""
    # Elsewhere a child could not be told to end with its parent.
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        return False
    try:
        with os.scandir(store / "records") as entries:
            return sum(1 for _ in zip(entries, range(2), strict=False)) == 2
    except OSError:
        return False

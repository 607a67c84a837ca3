"""What every child process does at its start and end: die with its parent, report, exit by code."""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from harness.errors import HarnessError

_PR_SET_PDEATHSIG = 1
PARENT_PID = "HARNESS_PARENT_PID"
"""Variable in which a parent says who it is."""
CRASHED = 70
"""Exit code of an unexpected exception (EX_SOFTWARE)."""
PEER_LOST = 75
"""Exit code of a stage that ends because of another one (EX_TEMPFAIL)."""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, however it ends.

    A parent that says who it is may have ended before, while this process was starting.
    """
    parent = int(os.environ.get(PARENT_PID, os.getppid()))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def say(message: str) -> None:
    """Report progress to the supervisor: one line on standard output."""
    print(message, flush=True)


def run_child(main: Callable[[], int]) -> None:
    """Run a child's main function and exit by its code; expected errors are one message."""
    die_with_parent()
    try:
        code = main()
    except HarnessError as error:
        print(str(error), file=sys.stderr, flush=True)
        code = int(error.exit_code)
    except Exception as error:
        # One line is recorded; a traceback would carry this machine's paths into the evidence.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        print(f"{type(error).__name__} in {place}: {error}", file=sys.stderr, flush=True)
        code = CRASHED
    sys.exit(code)

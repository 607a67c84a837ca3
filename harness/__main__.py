"""``python -m harness`` is the command ``harness``."""

import contextlib
import os
import sys

from harness.cli import main


def command() -> None:
    """Run the command and end with its exit code."""
    code = main()
    for stream in (sys.stdout, sys.stderr):
        # A caller may have closed it, before the start (there is none then) or meanwhile.
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
    # Taking loaded libraries apart takes longer than some commands do, and is of use to nobody.
    os._exit(code)


if __name__ == "__main__":
    command()

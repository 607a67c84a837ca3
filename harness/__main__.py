"""``python -m harness`` is the command ``harness``."""

import os
import sys

from harness.cli import main


def command() -> None:
    """Run the command and end with its exit code."""
    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)
    # Taking loaded libraries apart takes longer than some commands do, and is of use to nobody.
    os._exit(code)


if __name__ == "__main__":
    command()

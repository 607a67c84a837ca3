"""The command ``harness``: parses the command line, calls one room, maps errors to exit codes.

Loads only what the chosen command needs; nothing here loads torch. Exit codes: 0 passed, 1 audited
and failed, 2 invalid input, 3 cannot be evaluated here; besides, 130 after an interrupt, 141 when
the reader of the output went away, and 70 for a bug.
"""

import importlib
import sys
from collections.abc import Callable, Sequence

from harness.cli.parser import parse_arguments
from harness.errors import HarnessError

INTERRUPTED = 130
OUTPUT_CLOSED = 141
BUG = 70


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Expected errors are one message, no traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    try:
        options = parse_arguments(arguments)
        module, _, name = options.handler.partition(":")
        handler: Callable[..., int] = getattr(importlib.import_module(module), name)
        code = int(handler(options))
        sys.stdout.flush()
        return code
    except HarnessError as error:
        from harness.cli.failure import report_error

        return report_error(error, as_json=as_json)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        from harness.cli.failure import discard_output

        discard_output()
        return OUTPUT_CLOSED
    except Exception as error:  # a bug of ours: told in one message, never as a traceback
        from harness.cli.failure import report_bug

        report_bug(error, as_json=as_json)
        return BUG

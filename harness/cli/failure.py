"""How a command says that something went wrong: one message on standard error, or one JSON object.

With ``--json`` the object ``{"error": ...}`` goes to standard output, where a script reads results.
"""

import os
import secrets
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.cli.output import print_json, safe
from harness.errors import HarnessError, PlanError

BUG_FOLDER = Path("runs") / "errors"


def report_error(error: HarnessError, *, as_json: bool) -> int:
    """Report an expected error; returns its exit code."""
    if as_json:
        print_json({"error": error_document(error)})
    else:
        print(f"error: {safe(str(error))}", file=sys.stderr)
    return int(error.exit_code)


def error_document(error: HarnessError) -> dict[str, Any]:
    """An expected error as plain values; absent parts are null."""
    document: dict[str, Any] = {
        "problem": error.problem,
        "expected": error.expected,
        "got": error.got,
        "where": error.where,
        "hint": error.hint,
        "exit_code": int(error.exit_code),
    }
    if isinstance(error, PlanError):
        document["findings"] = [finding_document(finding) for finding in error.findings]
    return document


def finding_document(finding: object) -> Any:
    """A finding as ``{rule, path, message}`` where it has these, else as text."""
    names = ("rule", "path", "message")
    if all(hasattr(finding, name) for name in names):
        return {name: getattr(finding, name) for name in names}
    return str(finding)


def report_bug(error: Exception, *, as_json: bool) -> None:
    """Say that this is a bug, and write the traceback to a file instead of the terminal."""
    summary = f"{type(error).__name__}: {error}"[:400]
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}.txt"
    path: Path | None = BUG_FOLDER / name
    try:
        BUG_FOLDER.mkdir(parents=True, exist_ok=True)
        (BUG_FOLDER / name).write_text("".join(traceback.format_exception(error)))
    except OSError:
        path = None
    details = str(path) if path is not None else "nothing could be written there"
    if as_json:
        print_json({"error": {"problem": "bug", "got": summary, "where": str(path)}})
    print(
        f"error: this is a bug in the harness, not in your input\n  got: {safe(summary)}\n"
        f"  details: {details}\n  what to do: report it together with that file",
        file=sys.stderr,
    )


def discard_output() -> None:
    """Let nothing more be written to a standard output whose reader has gone away."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)

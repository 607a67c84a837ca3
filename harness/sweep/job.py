"""One job of a sweep: a fresh process that is waited for, and how it ended.

Whatever engine starts it, a job is this: a command, run to its end, whose exit code, signal and
last words are kept. Knows processes, nothing of what the command does.
"""

import json
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from harness.errors import ExitCode

_KEPT_LINES = 40
_MAX_LINE = 4096
_MAX_OUTPUT_LINES = 100_000


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be run."""

    overrides: tuple[str, ...]
    command: tuple[str, ...]
    folder: Path
    """The working folder."""
    as_json: bool
    """Whether the command prints one JSON document."""
    title: str | None = None
    """Said when it starts; what the job says then follows while it runs. Else that is kept."""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How one job of a sweep ended."""

    overrides: tuple[str, ...]
    exit_code: int
    """The job's own exit code; 1 when a signal ended it, or it was lost."""
    signal: str | None = None
    message: str | None = None
    """What the job said about its failure."""
    result: Any = None
    """The job's JSON result, when the sweep was asked for one."""
    skipped: str | None = None
    """Digest of the passing record for which the job was not run."""
    output: str | None = None
    """What it printed, where that did not go to the terminal at once."""


def lost(job: Job, reason: object) -> JobResult:
    """The result of a job whose engine ended it, or lost it."""
    text = " ".join(str(reason).split())[:500]
    return JobResult(overrides=job.overrides, exit_code=1, message=f"lost by its engine: {text}")


def run_job(job: Job) -> JobResult:
    """Run a job to its end; nothing that it does is raised here."""
    keeps = job.as_json or job.title is None
    echo = None if job.title is None else sys.stderr
    if job.title is not None:
        print(job.title, file=sys.stderr, flush=True)
    process = subprocess.Popen(
        job.command,
        cwd=job.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if keeps else None,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    errors: deque[str] = deque(maxlen=_KEPT_LINES)
    output: deque[str] = deque(maxlen=_MAX_OUTPUT_LINES)
    readers = [_reader(process.stderr, errors, echo), _reader(process.stdout, output, None)]
    try:
        code = process.wait()
    except BaseException:
        # An interrupt reaches the job as well; it ends its own children before it ends.
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    for reader in readers:
        # A killed job's own children may still hold the pipe.
        reader.join(timeout=5)
    ended_by = signal.Signals(-code).name if code < 0 else None
    text = "".join(output)
    result = _result(text) if job.as_json else None
    return JobResult(
        overrides=job.overrides,
        exit_code=1 if code < 0 else code,
        signal=ended_by,
        message=_message(code, ended_by, list(errors), result),
        result=result,
        output=text if keeps and not job.as_json else None,
    )


def without_output(result: JobResult) -> JobResult:
    """A result as a sweep's document holds it."""
    return replace(result, output=None)


def _reader(source: IO[str] | None, lines: "deque[str]", echo: IO[str] | None) -> threading.Thread:
    def read() -> None:
        if source is None:
            return
        with source:
            while line := source.readline(_MAX_LINE):
                lines.append(line)
                if echo is not None:
                    echo.write(line)
                    echo.flush()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _message(code: int, ended_by: str | None, errors: list[str], result: Any) -> str | None:
    if code == ExitCode.PASSED:
        return None
    if ended_by is not None:
        return f"killed by {ended_by}"
    if isinstance(result, dict) and isinstance(result.get("error"), dict):
        parts = result["error"]
        named = [f"{name}: {parts[name]}" for name in ("got", "where", "hint") if parts.get(name)]
        return "\n  ".join([f"error: {parts.get('problem')}", *named])
    starts = [index for index, line in enumerate(errors) if line.startswith("error: ")]
    if starts:
        return "".join(errors[starts[-1] :]).rstrip()
    if code == ExitCode.FAILED:
        return "audited and failed; its own summary says why"
    return errors[-1].rstrip() if errors else f"exit code {code}"


def _result(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None

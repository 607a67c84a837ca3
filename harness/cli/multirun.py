"""Sweeps: every plan is checked first, then each job runs as a fresh process, one after another.

A job that fails, exits or is killed ends nothing else; all of them are reported at the end. Hydra
expands the sweep and runs none of it: inside its own launcher a second exception would be lost and
an exit would end the sweep.
"""

import json
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from harness.cli.output import print_json, print_lines
from harness.cli.project import run_request
from harness.errors import ExitCode, HarnessError, InvalidInputError, NotEvaluableError
from harness.experiment import compose_experiment, expand_sweep
from harness.run import supervisor

_KEPT_LINES = 40
_MAX_LINE = 4096


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How one job of a sweep ended."""

    overrides: tuple[str, ...]
    exit_code: int
    """The job's own exit code; 1 when a signal ended it."""
    signal: str | None
    message: str | None
    """What the job said about its failure."""
    result: Any
    """The job's JSON result, when the sweep was asked for one."""


def worst(codes: Sequence[int]) -> int:
    """The exit code of a sweep: any failure is 1, else any invalid input 2, else 3, else 0."""
    known = {int(code) for code in ExitCode}
    if any(code == ExitCode.FAILED or code not in known for code in codes):
        return int(ExitCode.FAILED)
    for code in (ExitCode.INVALID_INPUT, ExitCode.NOT_EVALUABLE):
        if code in codes:
            return int(code)
    return int(ExitCode.PASSED)


def multirun(options: Namespace, folder: Path) -> int:
    """Run every job of a sweep; returns the worst exit code.

    Raises:
        InvalidInputError: When any job cannot be composed or its plan breaks a rule; nothing has
            been started then.
    """
    jobs = expand_sweep(options.overrides, config_dir=folder)
    _check_all(jobs, options, folder)
    results = []
    for index, job in enumerate(jobs):
        print(f"job {index + 1}/{len(jobs)}: {' '.join(job)}", file=sys.stderr, flush=True)
        results.append(_run_job(job, options, folder))
    if options.json:
        print_json({"jobs": [asdict(result) for result in results]})
    else:
        print_lines(_report(results))
    return worst([result.exit_code for result in results])


def _check_all(jobs: Sequence[tuple[str, ...]], options: Namespace, folder: Path) -> None:
    problems: list[str] = []
    kinds: list[int] = []
    seen: set[tuple[Path, str | None]] = set()
    for job in jobs:
        try:
            config = compose_experiment(job, config_dir=folder)
            config.require_frozen()
            request = run_request(config, options)
            if (request.plan_path, request.plan_digest) not in seen:
                supervisor.check(request)
                seen.add((request.plan_path, request.plan_digest))
        except HarnessError as error:
            indented = str(error).replace("\n", "\n    ")
            problems.append(f"{' '.join(job)}: {indented}")
            kinds.append(int(error.exit_code))
    if problems:
        kind = NotEvaluableError if worst(kinds) == ExitCode.NOT_EVALUABLE else InvalidInputError
        raise kind(
            f"{len(problems)} of {len(jobs)} jobs cannot be run, so none was started:\n  - "
            + "\n  - ".join(problems)
        )


def _run_job(job: tuple[str, ...], options: Namespace, folder: Path) -> JobResult:
    command = [sys.executable, "-m", "harness", "run", *job, "--config-dir", str(folder)]
    if options.json:
        command.append("--json")
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if options.json else None,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    errors: deque[str] = deque(maxlen=_KEPT_LINES)
    output: deque[str] = deque(maxlen=100_000)
    readers = [_reader(process.stderr, errors, sys.stderr), _reader(process.stdout, output, None)]
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
    result = _result("".join(output)) if options.json else None
    return JobResult(
        overrides=job,
        exit_code=1 if code < 0 else code,
        signal=ended_by,
        message=_message(code, ended_by, list(errors), result),
        result=result,
    )


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


def _report(results: Sequence[JobResult]) -> list[str]:
    num_passed = sum(result.exit_code == ExitCode.PASSED for result in results)
    lines = [f"sweep: {len(results)} jobs, {num_passed} passed, {len(results) - num_passed} not"]
    for result in results:
        state = "passed" if result.exit_code == ExitCode.PASSED else f"exit code {result.exit_code}"
        lines.append(f"  {result.signal or state:<12} {' '.join(result.overrides)}")
        if result.message is not None:
            lines += [f"      {line}" for line in result.message.splitlines()]
    return lines

"""Starts the stages of a chain on this machine, and tells which one ended it, and why.

A stage that is killed, fails, hangs or disagrees ends the chain in bounded time; no process is
left. Observes nothing itself, imports no torch and judges nothing.
"""

import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.canonical import read_json
from harness.errors import InvalidInputError
from harness.plan.load import load_plan
from harness.plan.request import layout_request
from harness.run.processes import Child, Outcome, child_environment
from harness.run.stage_job import REPORT_FILE, StageJob, stage_ranges, write_stage_job
from harness.run.watching import STAGE_ENVIRONMENT, Fault, end_all, fault_of, watch_stages
from harness.stages.listener import LOOPBACK, listen

MAX_REPORT_BYTES = 64 << 20
STAGE_ARGV = (sys.executable, "-m", "harness.run.stage")


@dataclass(frozen=True, kw_only=True)
class ChainRequest:
    """One run of a chain on this machine."""

    plan: Path
    checkpoint: Path
    """Folder of the pinned checkpoint files."""
    out: Path
    """Folder to write the stages' jobs and reports in; made here, or empty."""
    cuts: tuple[int, ...]
    """First layer of every stage but the first."""
    timeout_s: float = 60.0
    """Bound on each wait of one stage for another."""
    start_timeout_s: float = 600.0
    """The same while stages start and load."""
    run_timeout_s: float = 3600.0
    """Bound on the whole run."""
    port: int = 0
    """0 for a free one."""
    is_armed: bool = False
    argv: Mapping[int, Sequence[str]] | None = None
    """Commands of single stages instead of :data:`STAGE_ARGV`."""


@dataclass(frozen=True, kw_only=True)
class ChainOutcome:
    """How every stage ended, in order; ``fault`` is ``None`` when each came to its end."""

    outcomes: tuple[Outcome, ...]
    fault: Fault | None
    reports: tuple[Mapping[str, object], ...]
    """Of each stage, in order; empty when there is a fault."""


def run_chain(
    request: ChainRequest, on_line: Callable[[int, str], None] = lambda stage, line: None
) -> ChainOutcome:
    """Run every stage of a chain to its end, or until one of them ends it.

    Args:
        request: The run.
        on_line: Told each stage's lines of progress, from threads.

    Raises:
        InvalidInputError: When the plan is not valid, or cannot be cut so, or ``out`` holds
            something.
        NotEvaluableError: When the port is in use. No stage was started in either case.
    """
    wanted = layout_request(load_plan(request.plan).plan)
    stage_ranges(wanted.spec, request.cuts)
    environment = child_environment(wanted.determinism.num_threads) | STAGE_ENVIRONMENT
    request.out.mkdir(parents=True, exist_ok=True)
    if any(request.out.iterdir()):
        raise InvalidInputError(
            "the folder for a chain's reports holds something",
            expected="an empty folder, or none",
            where=str(request.out),
        )
    with listen(port=request.port) as listener:
        jobs = _jobs(request, listener.getsockname()[1])
        children: list[Child] = []
        try:
            for job in jobs:
                children.append(_start(request, job, listener, environment, on_line))
            # Only the first stage listens: nobody may connect to one that is gone.
            listener.close()
            outcomes = watch_stages(
                children, run_timeout_s=request.run_timeout_s, wait_s=request.timeout_s
            )
        finally:
            end_all(children)
    fault = fault_of(outcomes)
    reports = () if fault is not None else tuple(_report(Path(job.out)) for job in jobs)
    return ChainOutcome(outcomes=outcomes, fault=fault, reports=reports)


def _jobs(request: ChainRequest, port: int) -> list[StageJob]:
    nonce = secrets.token_hex(16)
    return [
        StageJob(
            plan=str(request.plan),
            checkpoint=str(request.checkpoint),
            out=str(request.out / f"stage-{stage}"),
            stage=stage,
            cuts=request.cuts,
            nonce=nonce,
            port=port,
            lead_host=LOOPBACK,
            own_host=LOOPBACK,
            timeout_s=request.timeout_s,
            start_timeout_s=request.start_timeout_s,
            is_armed=request.is_armed,
        )
        for stage in range(len(request.cuts) + 1)
    ]


def _start(
    request: ChainRequest,
    job: StageJob,
    listener: socket.socket,
    environment: Mapping[str, str],
    on_line: Callable[[int, str], None],
) -> Child:
    path = Path(job.out) / "job.json"
    write_stage_job(path, job)
    argv = [*(request.argv or {}).get(job.stage, STAGE_ARGV), "--job", str(path)]
    is_first = job.stage == 0
    if is_first:
        argv += ["--listen-fd", str(listener.fileno())]
    return Child(
        f"stage {job.stage}",
        argv,
        environment=environment,
        on_line=partial(on_line, job.stage),
        pass_fds=[listener.fileno()] if is_first else [],
    )


def _report(folder: Path) -> Mapping[str, object]:
    document: Mapping[str, object] = read_json(folder / REPORT_FILE, max_bytes=MAX_REPORT_BYTES)
    return document

"""One fresh realization in stages: a producer and a witness for each, in one chain.

    listen -> start every stage -> watch -> end the witnesses

Observes nothing itself, imports no torch and judges nothing.
"""

import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness.errors import NotEvaluableError
from harness.plan.records import Stage, TimeoutsS
from harness.run.job import Job, Place, write_job
from harness.run.machines import Machines
from harness.run.pair import WITNESS_END_S, start_pair
from harness.run.processes import Outcome, not_started
from harness.run.watching import (
    LOOPBACK_ENVIRONMENT,
    STAGE_ENVIRONMENT,
    Watched,
    end_all,
    watch_stages,
)
from harness.stages.listener import LOOPBACK, listen


@dataclass(frozen=True, kw_only=True)
class StagedRun:
    """What every fresh realization of one plan with stages has in common."""

    stages: tuple[Stage, ...]
    timeouts: TimeoutsS
    job: Job
    argv: Sequence[str]
    """The producer's command."""
    environment: Mapping[str, str]
    port: int
    """At which the first stage listens; 0 for a free one."""
    machines: Machines | None = None
    """Of the other stages, where each has one of its own."""

    @property
    def host(self) -> str:
        """The address at which the first stage listens."""
        return LOOPBACK if self.machines is None else self.machines.host


def realize_stages(
    run: StagedRun, out: Path, index: int, on_line: Callable[[str], None]
) -> list[Outcome]:
    """Run every stage to its end, or until one of them ends the chain.

    Args:
        run: What to run.
        out: Folder of this realization; each stage's tables go into a folder of its name.
        index: Which fresh realization it is.
        on_line: Told each stage's lines of progress, from threads.

    Returns:
        How each stage's producer and witness ended, stage by stage.
    """
    gone = None if run.machines is None else run.machines.gone
    if gone is not None:
        return unstarted(run.stages, index, gone)
    try:
        listener = listen(run.host, run.port)
    except NotEvaluableError as error:
        return _unstarted(run, index, error)
    producers: list[Watched] = []
    witnesses: list[Watched] = []
    nonce = secrets.token_hex(16)
    with listener:
        try:
            for number, stage in enumerate(run.stages):
                producer, witness = _start(
                    run, out / stage.id, index, (number, stage), nonce, listener, on_line
                )
                producers.append(producer)
                witnesses.append(witness)
            # Only the first stage listens: nobody may connect to one that is gone.
            listener.close()
            ended = watch_stages(
                producers,
                run_timeout_s=run.timeouts.realization_s,
                wait_s=float(run.timeouts.stage_wait_s or 0),
            )
            # A witness ends by itself once its producer's end of the socket is closed.
            seen = [witness.wait(WITNESS_END_S) for witness in witnesses]
        finally:
            end_all([*producers, *witnesses])
    return [each for pair in zip(ended, seen, strict=True) for each in pair]


def unstarted(stages: Sequence[Stage], index: int, reason: str) -> list[Outcome]:
    """Outcomes of a realization of which nothing was started."""
    return [
        not_started(f"{child} {stage.id}", index, reason)
        for stage in stages
        for child in ("producer", "witness")
    ]


def _unstarted(run: StagedRun, index: int, error: NotEvaluableError) -> list[Outcome]:
    """The first stage could not listen: that is its failure, and nobody else was started."""
    first, *others = unstarted(run.stages, index, "the first stage cannot listen")
    failed = replace(first, outcome="failed", exit_code=int(error.exit_code), message=str(error))
    return [failed, *others]


def _start(
    run: StagedRun,
    out: Path,
    index: int,
    of: tuple[int, Stage],
    nonce: str,
    listener: socket.socket,
    on_line: Callable[[str], None],
) -> tuple[Watched, Watched]:
    number, stage = of
    out.mkdir(parents=True)
    place = Place(
        number=number,
        nonce=nonce,
        port=listener.getsockname()[1],
        lead_host=run.host,
        own_host=run.host,
    )
    if run.machines is not None and number > 0:
        return run.machines.start(number, place, index, run.job.fixture / stage.id, out)
    write_job(out / "job.json", replace(run.job, place=place))
    around = LOOPBACK_ENVIRONMENT if run.machines is None else {}
    argv = [*run.argv, "--job", str(out / "job.json")]
    is_first = number == 0
    if is_first:
        argv += ["--listen-fd", str(listener.fileno())]
    return start_pair(
        argv,
        out=out,
        realization=index,
        checkpoint=run.job.checkpoint,
        environment={**run.environment, **STAGE_ENVIRONMENT, **around},
        on_line=partial(_told, on_line, stage.id),
        of_stage=stage.id,
        pass_fds=(listener.fileno(),) if is_first else (),
    )


def _told(on_line: Callable[[str], None], stage_id: str, line: str) -> None:
    on_line(f"{stage_id}: {line}")

"""Another machine of a run: realizes its own stage whenever the first machine opens one.

    check -> bind -> meet -> hello -> (open -> producer + witness -> report) ... -> close

The same checks and the same producer and witness as on one machine; record and verdict are the
first machine's. When that is lost, everything here ends. Imports no torch and judges nothing.
"""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from harness.errors import HarnessError, NotEvaluableError
from harness.plan.recipe import FIXTURE_FILE
from harness.plan.records import Plan, Stage
from harness.plan.stages import stage_views
from harness.run.here import job_here, place_checkpoint
from harness.run.job import Job, Place, write_job
from harness.run.machines import (
    CLOSE,
    COURIER_START_S,
    END,
    HELLO,
    NO_NONCE,
    OPEN,
    REPORT,
    idle_s,
    write_environment,
)
from harness.run.pair import WITNESS_END_S, start_pair
from harness.run.post import LOST, MET, Event, Post
from harness.run.processes import Outcome, child_environment, not_started
from harness.run.progress import Progress
from harness.run.reports import write_report
from harness.run.request import RunRequest
from harness.run.supervisor import check
from harness.run.watching import STAGE_ENVIRONMENT, ended_by_now
from harness.run.workplace import work_folder
from harness.stages.listener import address_towards

_NONCE = re.compile(r"\A[0-9a-f]{32}\Z")
_POLL_S = 0.05
_AGAIN = "see what the first machine said, then start the run again on every machine"


def serve(request: RunRequest, number: int) -> Mapping[str, Any]:
    """Take part in one run as the machine of a stage but the first.

    Args:
        request: As on the first machine, whose address it holds.
        number: Of the stage.

    Returns:
        How the run ended, as the first machine says.

    Raises:
        HarnessError: When this machine cannot take part.
        NotEvaluableError: When the first machine does not come, or is lost.
    """
    plan = check(request).plan
    with Progress() as progress, work_folder(request.store) as work:
        stage, own = (plan.stages or ())[number], stage_views(plan, None, None)[number].plan
        job = job_here(request, own, work)
        with _courier(request, job, number, work) as (post, place):
            progress.update("meeting the first machine")
            _meet(post, plan)
            post.send(0, {"kind": HELLO}, [write_environment(work, job.environment)])
            problem = None
            try:
                job = replace(job, checkpoint=place_checkpoint(request, plan, progress))
            except HarnessError as error:
                # Told when the first machine opens a realization: its record then says so.
                problem = str(error)
            outpost = Outpost(
                request=request,
                plan=plan,
                stage=stage,
                place=place,
                job=job,
                post=post,
                work=work,
                progress=progress,
                problem=problem,
            )
            return outpost.serve()


@contextmanager
def _courier(
    request: RunRequest, job: Job, number: int, work: Path
) -> Iterator[tuple[Post, Place]]:
    lead = request.lead
    assert lead is not None
    place = Place(
        number=number,
        nonce=NO_NONCE,
        port=lead.port,
        lead_host=lead.host,
        own_host=address_towards(lead.host, lead.port),
    )
    path = work / "courier.json"
    write_job(path, replace(job, place=place))
    argv = [*request.courier_argv, "--job", str(path), "--inbox", str(work / "inbox")]
    with Post(argv, {**child_environment(1), **STAGE_ENVIRONMENT}) as post:
        yield post, place


def _meet(post: Post, plan: Plan) -> None:
    """Wait until all machines have met and compared what they are."""
    timeouts = plan.timeouts
    assert timeouts is not None
    event = post.next(float(timeouts.stage_start_s or 0) + COURIER_START_S)
    if event is None or event.kind != MET:
        reason = "not in time" if event is None else event.reason
        raise NotEvaluableError(
            "the machines did not meet",
            got=reason,
            hint="start `harness stage` with the same plan and --lead on every machine, all within "
            "the plan's stage_start_s",
        )


@dataclass(frozen=True, kw_only=True)
class Outpost:
    """One machine of a run, from the meeting on."""

    request: RunRequest
    plan: Plan
    """The whole one."""
    stage: Stage
    place: Place
    """Of its courier; a realization has a nonce and a port of its own."""
    job: Job
    post: Post
    work: Path
    progress: Progress
    problem: str | None
    """Why nothing can be realized here; ``None`` where it can."""

    def serve(self) -> Mapping[str, Any]:
        """Realize the stage as often as it is opened; returns how the run ended.

        Raises:
            NotEvaluableError: When the first machine is lost, silent or out of turn.
        """
        realized = 0
        while True:
            self.progress.update("waiting for the first machine")
            event = self._next(idle_s(self.plan))
            if event is None:
                raise NotEvaluableError("the first machine is silent", hint=_AGAIN)
            kind = event.note.get("kind")
            if kind == CLOSE:
                return event.note
            if kind == OPEN:
                opened = _opened(event, realized)
                realized += 1
                self._report(opened, self._realize(opened))
            elif kind != END:  # one that came too late to end anything
                raise _out_of_turn(event)

    def _next(self, timeout_s: float) -> Event | None:
        event = self.post.next(timeout_s)
        if event is not None and event.kind == LOST:
            raise NotEvaluableError("the first machine is lost", got=event.reason, hint=_AGAIN)
        return event

    def _realize(self, opened: "Opened") -> tuple[Outcome, Outcome]:
        """Run producer and witness to their end, or until the first machine ends them."""
        out = self._out(opened)
        out.mkdir(parents=True)
        if self.problem is not None:
            producer, witness = (
                not_started(f"{child} {self.stage.id}", opened.realization, self.problem)
                for child in ("producer", "witness")
            )
            return producer, witness
        fixture = self.job.fixture / self.stage.id
        fixture.mkdir(parents=True, exist_ok=True)
        shutil.move(opened.fixture, fixture / FIXTURE_FILE)
        timeouts, determinism = self.plan.timeouts, self.plan.determinism
        assert timeouts is not None
        assert determinism is not None
        place = replace(self.place, nonce=opened.nonce, port=opened.port)
        write_job(out / "job.json", replace(self.job, place=place))
        children = start_pair(
            [*self.request.producer_argv, "--job", str(out / "job.json")],
            out=out,
            realization=opened.realization,
            checkpoint=self.job.checkpoint,
            environment={**child_environment(determinism.num_threads), **STAGE_ENVIRONMENT},
            on_line=self.progress.update,
            of_stage=self.stage.id,
        )
        try:
            deadline = monotonic() + timeouts.realization_s
            while children[0].poll() is None and monotonic() < deadline:
                event = self._next(_POLL_S)
                if event is not None and event.note.get("kind") != END:
                    raise _out_of_turn(event)
                if event is not None:
                    break
            # A witness ends by itself once its producer's end of the socket is closed.
            return ended_by_now(children[0]), children[1].wait(WITNESS_END_S)
        finally:
            for child in children:
                child.end()

    def _report(self, opened: "Opened", outcomes: tuple[Outcome, Outcome]) -> None:
        files = write_report(self._out(opened), outcomes)
        self.post.send(0, {"kind": REPORT, "realization": opened.realization}, files)

    def _out(self, opened: "Opened") -> Path:
        return self.work / f"r{opened.realization}" / self.stage.id


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A realization that the first machine opened."""

    realization: int
    nonce: str
    port: int
    """At which the first stage listens."""
    fixture: Path
    """The stage's share of the reference."""


def _opened(event: Event, realized: int) -> Opened:
    note, folder = event.note, event.folder
    nonce, port = note.get("nonce"), note.get("port")
    is_opening = (
        type(note.get("realization")) is int
        and note["realization"] == realized
        and isinstance(nonce, str)
        and _NONCE.match(nonce) is not None
        and type(port) is int
        and 0 < port < 1 << 16
        and folder is not None
        and (folder / FIXTURE_FILE).is_file()
    )
    if not is_opening:
        raise _out_of_turn(event)
    assert folder is not None
    return Opened(
        realization=realized, nonce=str(nonce), port=int(port or 0), fixture=folder / FIXTURE_FILE
    )


def _out_of_turn(event: Event) -> NotEvaluableError:
    return NotEvaluableError(
        "the first machine sent what is not expected of it", got=f"{dict(event.note)!r:.200}"
    )

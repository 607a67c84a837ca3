"""The supervisor: checks, starts the children one after another, assembles the record, reports.

    load and check plan -> bind -> checkpoint -> fixture maker
        -> (producer + witness) x fresh realizations -> statement -> auditor -> summary

It imports no torch and judges nothing: what the model did comes from the children's tables, the
verdict from the auditor. Of its own it observes what only it can: the machine, how each child
ended, and which source it runs. Nothing heavy starts before the static check has passed.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
from harness.adapters.families import layout_for
from harness.errors import (
    ExitCode,
    InvalidInputError,
    NotEvaluableError,
    PlanError,
)
from harness.measure.clock import utc_timestamp
from harness.plan.check import check_plan
from harness.plan.load import LoadedPlan, load_plan
from harness.plan.manifest import load_manifest
from harness.plan.nodes import has_nodes
from harness.plan.records import Checkpoint, Plan
from harness.plan.request import layout_request
from harness.run.child import CRASHED
from harness.run.pair import WITNESS_END_S, start_pair
from harness.run.prepare import Prepared, prepare
from harness.run.processes import Child, Outcome, child_environment, not_started
from harness.run.progress import Progress
from harness.run.request import RunRequest
from harness.run.runnable import require_runnable
from harness.run.staged import StagedRun, realize_stages, unstarted
from harness.run.workplace import work_folder

if TYPE_CHECKING:
    from harness.run.assemble import Gathered
    from harness.run.observed import Observed

PACKAGE_ROOT = Path(harness.__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A run that came to its verdict, whatever that is."""

    record: str
    """The record's digest."""
    prepared: Prepared
    outcomes: Sequence[Outcome]
    gathered: "Gathered"
    observed: "Observed"
    """What armed producers observed; empty where none was armed."""
    verdict: Mapping[str, Any]
    exit_code: int


def run(request: RunRequest) -> int:
    """Run one experiment to its verdict, and print its summary; returns the exit code.

    Raises:
        HarnessError: When the run could not start; nothing has been written then.
    """
    with Progress() as progress:
        completed = execute(request, progress)
    from harness.evidence.store import Store
    from harness.run.summary import print_summary, summarize

    summary = summarize(
        experiment=request.experiment,
        loaded=completed.prepared.loaded,
        checkpoint=completed.prepared.job.checkpoint,
        processes=completed.gathered.processes,
        totals=completed.gathered.totals,
        outcomes=completed.outcomes,
        verdict=completed.verdict,
        record=Store(request.store).path("records", completed.record),
        exit_code=completed.exit_code,
    )
    print_summary(summary, as_json=request.as_json)
    return completed.exit_code


def execute(request: RunRequest, progress: Progress) -> Completed:
    """Run one experiment to its verdict.

    Raises:
        HarnessError: When the run could not start; nothing has been written then.
    """
    started_at = utc_timestamp()
    checked = check(request)
    with work_folder(request.store) as work, ExitStack() as stack:
        prepared = prepare(request, checked, work, progress, stack)
        outcomes = _produce(request, prepared, work, progress)
        progress.update("assembling the record")
        # What reads tables is loaded when there are some, and keeps nobody from starting.
        from harness.run.recording import record_run

        digest, gathered, observed = record_run(
            request, prepared, work, outcomes, started_at=started_at, package_root=PACKAGE_ROOT
        )
        progress.update("audit")
        verdict, code = _audit(request, prepared, digest)
        if prepared.machines is not None:
            prepared.machines.close(digest, verdict["status"], _exit_code(outcomes, code))
    return Completed(
        record=digest,
        prepared=prepared,
        outcomes=outcomes,
        gathered=gathered,
        observed=observed,
        verdict=verdict,
        exit_code=_exit_code(outcomes, code),
    )


def check(request: RunRequest) -> LoadedPlan:
    """Load the pinned plan and check it statically, without touching anything heavy.

    Raises:
        InvalidInputError: When the plan is not the pinned one, or breaks a rule (all are listed).
    """
    loaded = load_plan(request.plan_path)
    plan = loaded.plan
    if request.plan_digest is not None and plan.digest != request.plan_digest:
        raise InvalidInputError(
            "the plan is not the one that the experiment pins",
            expected=request.plan_digest,
            got=plan.digest,
            where=str(request.plan_path),
            hint="restore the plan file, or pin the new digest in the experiment file",
        )
    layout_request(plan)
    checkpoint = _pinned(loaded)
    manifest = load_manifest(request.plan_path.parent, checkpoint.manifest)
    layout = layout_for(plan.adapter_data.family or "")
    findings = check_plan(loaded, environment=None, support=layout, manifest=manifest)
    if findings:
        raise PlanError(
            "the plan breaks rules", findings, where=str(request.plan_path), hint="derive it again"
        )
    require_runnable(plan, layout)
    _require_machines(request, plan)
    if plan.stages is not None and request.arming is not None:
        raise InvalidInputError(
            "boundaries of a plan with stages are not observed",
            expected="a plan that one process executes",
            got=f"{len(plan.stages)} stages",
            hint="observe them in the plan without stages: its bits are the same",
        )
    return loaded


def _require_machines(request: RunRequest, plan: Plan) -> None:
    """A plan whose stages have nodes is started on each of them, and no other plan is."""
    kinds = {unit.kind for node in plan.resources.nodes for unit in node.compute_units}
    if has_nodes(plan) and "cuda-gpu" in kinds:
        raise NotEvaluableError(
            "stages on GPUs of several machines are not run",
            expected="cpu or simulated-accelerator",
            got=", ".join(sorted(kinds)),
            where="$.resources.nodes",
            hint="derive the plan with realization.nodes=null, for GPUs of one machine",
        )
    if has_nodes(plan) == (request.lead is not None):
        return
    if request.lead is None:
        raise InvalidInputError(
            "each stage of this plan is to run on a machine of its own",
            expected=f"`harness stage` on each of {len(plan.stages or ())} machines",
            got="one machine",
            hint="see docs/stages.md, or derive the plan with realization.nodes=null",
        )
    raise InvalidInputError(
        "this plan has no stages on machines of their own",
        expected="a plan with a node for each stage",
        got=f"nodes: {len(plan.resources.nodes)}, stages: {len(plan.stages or ())}",
        hint="derive it with realization.stages=N realization.nodes=N",
    )


def _pinned(loaded: LoadedPlan) -> Checkpoint:
    if loaded.plan.checkpoint is None:
        raise InvalidInputError(
            "this plan pins no checkpoint files",
            expected="a plan of schema harness.plan/1",
            got=loaded.plan.schema,
        )
    return loaded.plan.checkpoint


def _produce(
    request: RunRequest, prepared: Prepared, work: Path, progress: Progress
) -> list[Outcome]:
    """Make the fixture, then every fresh realization; a child that fails ends nothing else."""
    if prepared.problem is not None:
        return _nothing_realized(prepared, prepared.problem)
    environment = child_environment(prepared.num_threads)
    maker = Child(
        "fixture",
        [*request.fixture_argv, "--job", str(work / "job.json")],
        environment=environment,
        on_line=lambda line: progress.update(f"fixture: {line}"),
    )
    outcomes = [maker.wait(prepared.timeouts.fixture_s)]
    for index in range(prepared.num_realizations):
        if outcomes[0].outcome != "completed":
            reason = "the reference fixture was not made"
            outcomes += _not_realized(prepared, index, reason)
            continue
        outcomes += _realize(request, prepared, work, index, progress)
    return outcomes


def _nothing_realized(prepared: Prepared, problem: Outcome) -> list[Outcome]:
    """Outcomes of a run whose machines did not meet."""
    reason = "the machines did not meet"
    others = [
        outcome
        for index in range(prepared.num_realizations)
        for outcome in _not_realized(prepared, index, reason)
    ]
    return [not_started("fixture", 0, reason), problem, *others[1:]]


def _not_realized(prepared: Prepared, index: int, reason: str) -> list[Outcome]:
    stages = prepared.loaded.plan.stages
    if stages is not None:
        return unstarted(stages, index, reason)
    return [not_started(child, index, reason) for child in ("producer", "witness")]


def _realize(
    request: RunRequest, prepared: Prepared, work: Path, index: int, progress: Progress
) -> list[Outcome]:
    out, stages = work / f"r{index}", prepared.loaded.plan.stages
    out.mkdir()
    environment = child_environment(prepared.num_threads)
    label = f"realization {index + 1}/{prepared.num_realizations}"

    def on_line(line: str) -> None:
        progress.update(f"{label}: {line}")

    if stages is not None:
        run_of_all = StagedRun(
            stages=stages,
            timeouts=prepared.timeouts,
            job=prepared.job,
            argv=request.producer_argv,
            environment=environment,
            port=request.stage_port,
            machines=prepared.machines,
        )
        return realize_stages(run_of_all, out, index, on_line)
    producer, witness = start_pair(
        [*request.producer_argv, "--job", str(work / "job.json")],
        out=out,
        realization=index,
        checkpoint=prepared.job.checkpoint,
        environment=environment,
        on_line=on_line,
    )
    ended = producer.wait(prepared.timeouts.realization_s)
    # The witness ends by itself once the producer's end of the socket is closed.
    return [ended, witness.wait(WITNESS_END_S)]


def _audit(request: RunRequest, prepared: Prepared, digest: str) -> tuple[dict[str, Any], int]:
    """Have the auditor, a process of its own, judge the record; returns its answer and its code."""
    lines: list[str] = []
    auditor = Child(
        "auditor",
        [
            *(sys.executable, "-m", "harness.run.auditor", "--json"),
            *("--plan", str(prepared.job.plan), "--store", str(request.store)),
            *("--record", digest),
        ],
        environment=child_environment(prepared.num_threads),
        on_line=lines.append,
    )
    outcome = auditor.wait(prepared.timeouts.audit_s)
    for line in reversed(lines):
        if line.startswith("{"):
            verdict: dict[str, Any] = json.loads(line)
            return verdict, outcome.exit_code if outcome.exit_code is not None else 3
    return {
        "status": "not_evaluated",
        "message": f"the auditor gave no verdict: {outcome.message or outcome.outcome}",
    }, int(ExitCode.NOT_EVALUABLE)


def _exit_code(outcomes: list[Outcome], audited: int) -> int:
    """The auditor's code; a child that could not evaluate, or was given bad input, says so."""
    if outcomes[0].outcome in ("killed", "timed_out") or outcomes[0].exit_code == CRASHED:
        # Without the reference nothing was realized, so nothing was found wrong either.
        return int(ExitCode.NOT_EVALUABLE)
    codes = {outcome.exit_code for outcome in outcomes if outcome.outcome == "failed"}
    for code in (ExitCode.NOT_EVALUABLE, ExitCode.INVALID_INPUT):
        if int(code) in codes and audited != ExitCode.PASSED:
            return int(code)
    return audited

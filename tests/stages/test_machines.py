"""Runs whose stages are on machines of their own: one audited record, and what goes wrong."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stage_control import assert_equal, checkpoint_of
from stage_processes import processes_of

from harness.adapters.families import layout_for
from harness.errors import ExitCode, InvalidInputError, NotEvaluableError
from harness.evidence.verify import verify_store
from harness.plan.load import LoadedPlan
from harness.reconcile.judge import judge
from harness.stages.listener import listen

LONG = [pytest.mark.slow, pytest.mark.long]
WAIT_S = 5


@pytest.fixture(scope="session")
def plan_of_two(staged_plan: Callable[..., LoadedPlan]) -> LoadedPlan:
    return staged_plan(
        "tiny_llama",
        2,
        "realization.nodes=2",
        "workload.repetitions=2",
        f"timeouts.stage_wait_s={WAIT_S}",
    )


@pytest.fixture(scope="session")
def of_two(plan_of_two: LoadedPlan, run_machines: Callable[..., Any]) -> Any:
    """One faithful run; its store must not be written to."""
    return run_machines(plan_of_two)


def of(trial: Any, stage: int, child: str = "producer") -> dict[str, Any]:
    return trial.outcomes()[f"{child} stage-{stage}"]


@pytest.mark.slow
def test_two_machines_make_one_record(of_two: Any, cache: Path) -> None:
    trial = of_two.trial
    assert_equal(trial, checkpoint_of(trial.plan, cache))
    assert verify_store(trial.record.store.root, plans=None) == []
    (told,) = of_two.others
    assert told["record"] == trial.record.digest
    assert (told["status"], told["exit_code"]) == ("passed", 0)
    facts = trial.record.predicate.environment["facts"]
    for number in (0, 1):
        for row in trial.record.rows("machine", 0, number):
            fact = facts[f"stage-{number}.{row['name']}"]
            assert row["value"] == (None if fact is None else str(fact))
    units = trial.record.predicate.binding.compute_units
    assert units == {name: name for name in ("stage-0.accelerator0", "stage-1.accelerator0")}


def judged(trial: Any, table: str, stage: int, change: Callable[[dict[str, Any]], object]) -> Any:
    """The verdict after a change of one row of a stage's table."""
    rows = [dict(row) for row in trial.record.rows(table, 0, stage)]
    change(rows[1])

    def changed(name: str, realization: int | None = None, number: int | None = None) -> Any:
        if (name, realization, number) == (table, 0, stage):
            return rows
        return trial.record.rows(name, realization, number)

    class Changed(type(trial.record)):  # type: ignore[misc]
        rows = staticmethod(changed)

    return judge(trial.plan, Changed(**vars(trial.record)), layout_for=layout_for)


def failed(verdict: Any) -> set[str]:
    return {check.id for check in verdict.checks if check.status == "failed"}


@pytest.mark.slow
@pytest.mark.parametrize("column", ["name", "value"])
def test_a_stage_that_saw_another_machine_is_found(of_two: Any, column: str) -> None:
    verdict = judged(
        of_two.trial, "machine", 1, lambda row: row.update({column: row[column] + "x"})
    )
    assert failed(verdict) == {"stages.machines"}
    assert all("tables/machine/r0/s1" in d.path for d in verdict.differences)


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "expected"), [(0, {"memory.invariants"}), (1, set())])
def test_a_machine_has_a_clock_of_its_own(of_two: Any, stage: int, expected: set[str]) -> None:
    """A time of day is held against the run's only where it was read by the run's clock."""

    def in_another_year(row: dict[str, Any]) -> None:
        row["read_at"] = "2001" + row["read_at"][4:]

    assert failed(judged(of_two.trial, "checkpoints", stage, in_another_year)) == expected


@pytest.mark.slow
def test_machines_in_another_order_are_found(of_two: Any) -> None:
    """Both nodes change places in environment and binding: stages would be on the wrong ones."""
    record = of_two.trial.record
    environment = dict(record.predicate.environment)
    resources = dict(environment["resources"])
    resources["nodes"] = list(reversed(resources["nodes"]))
    environment["resources"] = resources
    predicate = replace(record.predicate, environment=environment)
    verdict = judge(of_two.trial.plan, replace(record, predicate=predicate), layout_for=layout_for)
    assert {"plan.binding", "stages.machines"} <= failed(verdict)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("faulty", [0, 1])
def test_a_killed_stage_fails_the_run_and_is_named(
    plan_of_two: LoadedPlan, run_machines: Callable[..., Any], faulty: int
) -> None:
    run = run_machines(plan_of_two, {faulty: ("killed-in-decode",)})
    assert (run.trial.code, run.trial.verdict["status"]) == (ExitCode.FAILED, "failed")
    lost, other = of(run.trial, faulty), of(run.trial, 1 - faulty)
    assert (lost["outcome"], lost["signal"]) == ("killed", "SIGKILL")
    assert other["outcome"] == "failed"
    assert f"stage {faulty} did not" in other["message"]
    (told,) = run.others
    assert (told["status"], told["exit_code"]) == ("failed", ExitCode.FAILED)


@pytest.mark.slow
@pytest.mark.long
def test_a_hanging_stage_is_ended_where_it_runs(
    plan_of_two: LoadedPlan, run_machines: Callable[..., Any]
) -> None:
    run = run_machines(plan_of_two, {1: ("hangs-in-decode",)})
    lost, other = of(run.trial, 1), of(run.trial, 0)
    assert (lost["outcome"], other["outcome"]) == ("timed_out", "failed")
    assert "had not ended" in lost["message"]
    assert lost["duration_ns"] < 100e9
    assert run.trial.verdict["status"] == "failed"


@pytest.mark.slow
@pytest.mark.long
def test_a_machine_that_does_not_come_is_named(
    staged_plan: Callable[..., LoadedPlan], run_machines: Callable[..., Any]
) -> None:
    plan = staged_plan(
        "tiny_llama",
        3,
        "realization.nodes=3",
        "timeouts.stage_wait_s=1",
        "timeouts.stage_start_s=20",
    )
    run = run_machines(plan, plans={2: None})
    assert (run.trial.code, run.trial.verdict["status"]) == (ExitCode.FAILED, "failed")
    first = of(run.trial, 0)
    assert first["outcome"] == "failed"
    assert "not all stages came" in first["message"]
    assert "without stage 2" in first["message"]
    assert of(run.trial, 2)["outcome"] == "not_started"
    assert isinstance(run.others[0], NotEvaluableError)


@pytest.mark.slow
@pytest.mark.long
def test_a_machine_with_another_plan_is_refused_before_anything_is_loaded(
    plan_of_two: LoadedPlan,
    staged_plan: Callable[..., LoadedPlan],
    run_machines: Callable[..., Any],
) -> None:
    other = staged_plan("tiny_llama", 2, "realization.nodes=2", "workload.repetitions=3")
    run = run_machines(plan_of_two, plans={1: other})
    assert (run.trial.code, run.trial.verdict["status"]) == (ExitCode.INVALID_INPUT, "failed")
    told = of(run.trial, 0)["message"]
    assert f"stage 1: plan_digest: expected {plan_of_two.plan.digest}" in told
    assert other.plan.digest in told
    assert "plan_digest" in str(run.others[0])
    assert run.trial.outcomes()["fixture"]["outcome"] == "not_started"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "named"),
    [("bent-table", "steps.parquet arrived as sha256:"), ("killed-at-report", "connection")],
)
def test_a_table_that_does_not_arrive_whole_fails_the_run(
    plan_of_two: LoadedPlan, run_machines: Callable[..., Any], fault: str, named: str
) -> None:
    run = run_machines(plan_of_two, courier_faults={1: fault})
    assert (run.trial.code, run.trial.verdict["status"]) == (ExitCode.FAILED, "failed")
    for child in ("producer", "witness"):
        ended = of(run.trial, 1, child)
        assert ended["outcome"] == "failed"
        assert "the machine of stage-1 is lost" in ended["message"]
        assert named in ended["message"]
    assert of(run.trial, 0)["outcome"] == "completed"
    places = {(t.name, t.stage) for t in run.trial.record.predicate.tables}
    assert ("steps", 0) in places
    assert ("steps", 1) not in places


@pytest.mark.slow
@pytest.mark.long
def test_when_the_first_machine_is_killed_the_others_end(
    plan_of_two: LoadedPlan, cache: Path, tmp_path: Path, repo_root: Path
) -> None:
    with listen() as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "harness", "stage", f"plan={plan_of_two.path}"]
    command += [f"cache={cache}", "--lead", f"127.0.0.1:{port}"]
    first, other = (
        subprocess.Popen(
            [*command, f"store={tmp_path / str(number)}", "--number", str(number)],
            cwd=repo_root,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for number in (0, 1)
    )
    try:
        assert other.stderr is not None
        # Its producer runs.
        while "warm-up" not in (line := other.stderr.readline()):
            assert line
        first.kill()
        first.wait()
        _, message = other.communicate(timeout=30)
    finally:
        for process in (first, other):
            process.kill()
            process.communicate()
    assert other.returncode == ExitCode.NOT_EVALUABLE
    assert "the first machine is lost" in message
    deadline = time.monotonic() + 10
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(tmp_path) == []


def test_a_plan_is_started_as_it_says(
    plan_of_two: LoadedPlan,
    staged_plan: Callable[..., LoadedPlan],
    run_staged: Callable[..., Any],
    run_machines: Callable[..., Any],
) -> None:
    with pytest.raises(InvalidInputError, match="a machine of its own"):
        run_staged(plan_of_two)
    with pytest.raises(InvalidInputError, match="no stages on machines"):
        run_machines(staged_plan("tiny_llama", 2), plans={1: None})

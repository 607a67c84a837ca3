"""A run in stages in which one goes wrong: a failed record that names it, in bounded time."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from stage_processes import processes_of

from harness.errors import ExitCode, InvalidInputError
from harness.plan.load import LoadedPlan
from harness.realize.arming import Arming
from harness.run.child import PEER_LOST
from harness.stages.listener import listen

WAIT_S = 5


@pytest.fixture(scope="session")
def small(staged_plan: Callable[..., LoadedPlan]) -> LoadedPlan:
    return staged_plan("tiny_llama", 2, "workload.repetitions=1", f"timeouts.stage_wait_s={WAIT_S}")


def of(trial: Any, stage: int) -> dict[str, Any]:
    return trial.outcomes()[f"producer stage-{stage}"]


LONG = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faulty", "fault", "outcome", "message"),
    [
        (1, "killed-in-load", "killed", None),
        (0, "killed-in-decode", "killed", None),
        (1, "hangs-in-decode", "timed_out", "had not ended"),
        # Who receives a chunk, and who sent one and goes on with the next.
        pytest.param(0, "killed-in-prefill", "killed", None, marks=pytest.mark.long),
        pytest.param(1, "killed-in-prefill", "killed", None, marks=pytest.mark.long),
    ],
)
def test_a_lost_stage_fails_the_run_and_is_named(
    small: LoadedPlan,
    run_staged: Callable[..., Any],
    faulty: int,
    fault: str,
    outcome: str,
    message: str | None,
) -> None:
    trial = run_staged(small, {faulty: (fault,)})
    assert trial.code == ExitCode.FAILED
    assert trial.verdict["status"] == "failed"
    lost, other = of(trial, faulty), of(trial, 1 - faulty)
    assert lost["outcome"] == outcome
    assert lost["signal"] == ("SIGKILL" if outcome == "killed" else None)
    assert (message or "") in (lost["message"] or "")
    # Long before the bound on the realization.
    assert lost["duration_ns"] < 100e9
    # The other one noticed by itself, says whom it lost, and wrote no table.
    assert (other["outcome"], other["exit_code"]) == ("failed", PEER_LOST)
    assert f"stage {faulty} did not" in other["message"]
    assert {"integrity.tables", "trials.completed", "result.digest"} <= trial.failed
    assert trial.record.predicate.result_digest is None
    named = " ".join(trial.summary["problems"])
    assert f"producer stage-{faulty} 0: {outcome}" in named
    assert processes_of(trial.record.store.root) == []


@pytest.mark.slow
@pytest.mark.long
def test_stages_of_other_kinds_are_refused_before_anything_is_loaded(
    staged_plan: Callable[..., LoadedPlan], run_staged: Callable[..., Any], small: LoadedPlan
) -> None:
    plan = staged_plan("tiny_llama", 4, "workload.repetitions=1")
    other = staged_plan("tiny_llama", 4, "workload.repetitions=2")
    faults: dict[int, Sequence[str]] = {
        1: ("other-plan", str(other.path)),
        2: ("other-version",),
        3: ("other-dtype",),
    }
    trial = run_staged(plan, faults)
    assert trial.code == ExitCode.INVALID_INPUT
    assert trial.verdict["status"] == "failed"
    for stage in range(4):
        told = of(trial, stage)
        assert (told["outcome"], told["exit_code"]) == ("failed", InvalidInputError.exit_code)
        for named in (
            "stage 1: plan_digest: expected sha256:",
            "stage 2: version of harness: expected sha256:",
            "stage 3: dtype: expected float32, got bfloat16",
        ):
            assert named in told["message"]
    # Nobody came as far as a first reading of its memory.
    assert [trial.record.rows("checkpoints", 0, stage) for stage in range(4)] == [[]] * 4
    assert processes_of(trial.record.store.root) == []


@pytest.mark.slow
@pytest.mark.long
def test_a_second_first_stage_is_refused(small: LoadedPlan, run_staged: Callable[..., Any]) -> None:
    trial = run_staged(small, {1: ("second-leader",)})
    assert trial.code == ExitCode.NOT_EVALUABLE
    assert trial.verdict["status"] == "failed"
    second = of(trial, 1)
    assert (second["outcome"], second["exit_code"]) == ("failed", ExitCode.NOT_EVALUABLE)
    assert "the first stage cannot listen" in second["message"]
    assert processes_of(trial.record.store.root) == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("faulty", "fault", "found"),
    [
        (0, "bent-plane", {"stages.crossings", "correctness.exact", "steps.repeat"}),
        (1, "other-token", {"stages.tokens", "correctness.exact"}),
    ],
)
def test_what_changes_on_its_way_is_found(
    staged_plan: Callable[..., LoadedPlan],
    run_staged: Callable[..., Any],
    faulty: int,
    fault: str,
    found: set[str],
) -> None:
    trial = run_staged(staged_plan("tiny_llama", 2), {faulty: (fault,)})
    assert (trial.code, trial.verdict["status"]) == (ExitCode.FAILED, "failed")
    assert found <= trial.failed


@pytest.mark.slow
def test_a_port_in_use_is_told_in_the_record(
    small: LoadedPlan, run_staged: Callable[..., Any]
) -> None:
    with listen() as listener:
        trial = run_staged(small, stage_port=listener.getsockname()[1])
    assert trial.code == ExitCode.NOT_EVALUABLE
    assert trial.verdict["status"] == "failed"
    first = of(trial, 0)
    assert (first["outcome"], first["exit_code"]) == ("failed", ExitCode.NOT_EVALUABLE)
    assert "the first stage cannot listen" in first["message"]
    assert of(trial, 1)["outcome"] == "not_started"


def test_stages_are_not_observed_at_boundaries(
    passed: Any, run_staged: Callable[..., Any], tmp_path: Path
) -> None:
    del tmp_path
    with pytest.raises(InvalidInputError, match="are not observed"):
        run_staged(passed.plan, arming=Arming())

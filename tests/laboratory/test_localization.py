from typing import Any

import pytest
from armed_rows import armed_step_rows, boundary_rows, digest, state_rows

from harness.laboratory.localization import case_finding, findings
from harness.laboratory.trials import CaseTables, trial_rows

STEPS = [
    {
        "repetition": 0,
        "phase": phase,
        "step": step,
        "num_rows": 1,
        "token": 7,
        "plane_digest": digest(f"plane {phase} {step}"),
        "logits_digest": digest("logits"),
    }
    for phase, step in (("prefill", 0), ("prefill", 1), ("decode", 0))
]


def case(processes: int = 2, **changes: Any) -> CaseTables:
    numbers = range(processes)
    values: dict[str, Any] = {
        "num_realizations": processes,
        "repetitions": 2,
        "ledger": [
            {"child": "producer", "realization": n, "outcome": "completed", "message": None}
            for n in numbers
        ],
        "steps": dict.fromkeys(numbers, STEPS),
        "boundaries": {n: boundary_rows(2) for n in numbers},
        "armed_steps": {n: armed_step_rows(STEPS) for n in numbers},
        "replay_states": {n: state_rows(2) for n in numbers},
    }
    return CaseTables(**(values | changes))


def varied() -> dict[int, list[dict[str, Any]]]:
    def late(repetition: int, phase: str, step: int, name: str) -> object:
        return repetition if (phase, step) != ("prefill", 0) and name != "token_ids" else ""

    return {0: boundary_rows(2), 1: boundary_rows(2, value=late)}


def test_trials_that_agree_are_stable() -> None:
    found = case_finding(case())
    assert found["state"] == "stable"
    assert found["earliest"] is None
    assert (found["num_trials"], found["num_completed"]) == (4, 4)
    assert found["self_proof"] == found["armed_equals_unarmed"] == "passed"
    assert findings([found])["status"] == "stable"


def test_the_earliest_varying_boundary_is_named() -> None:
    found = case_finding(case(boundaries=varied()))
    assert found["state"] == "varying"
    assert found["earliest"] == {
        "phase": "prefill",
        "step": 1,
        "boundary": 1,
        "name": "embedding",
        "num_distinct": 3,
        "varies_within_a_process": True,
    }
    assert findings([case_finding(case()), found])["status"] == "varying"


def test_a_killed_trial_stays_in_the_ledger_and_counts_for_nothing() -> None:
    ledger = [
        {"child": "producer", "realization": 0, "outcome": "completed", "message": None},
        {"child": "producer", "realization": 1, "outcome": "killed", "message": "out of memory"},
    ]
    tables = case(ledger=ledger, boundaries=varied())
    rows = trial_rows(tables)
    assert [row["outcome"] for row in rows] == ["completed", "completed", "killed", "killed"]
    assert rows[2]["message"] == "out of memory"
    assert rows[2]["restored_state"] is None
    found = case_finding(tables)
    # What it had left before it was killed is not looked at.
    assert (found["state"], found["num_completed"], found["num_trials"]) == ("stable", 2, 4)


def test_a_process_that_left_no_rows_is_lost() -> None:
    tables = case(boundaries={0: boundary_rows(2)})
    assert [row["outcome"] for row in trial_rows(tables)] == ["completed"] * 2 + ["lost"] * 2


def test_one_trial_alone_cannot_vary() -> None:
    tables = case(
        processes=1,
        repetitions=1,
        boundaries={0: boundary_rows(1)},
        armed_steps={0: armed_step_rows(STEPS, 1)},
        replay_states={0: state_rows(1)},
    )
    found = case_finding(tables)
    assert found["state"] == "not_evaluated"
    assert findings([found])["status"] == "not_evaluated"
    assert findings([case_finding(case()), found])["status"] == "not_evaluated"


def test_nothing_ran() -> None:
    found = case_finding(CaseTables(num_realizations=2, repetitions=3))
    assert (found["num_trials"], found["num_completed"]) == (6, 0)
    assert found["state"] == found["self_proof"] == "not_evaluated"


@pytest.mark.parametrize(
    ("point", "column"), [("after_restore", "restored_state"), ("after_steps", "changed_state")]
)
def test_a_replay_that_does_not_prove_itself_fails(point: str, column: str) -> None:
    """A restore that returned another state; steps that left the state as it was."""
    states = state_rows(2)
    for row in states:
        if (row["point"], row["repetition"]) == (point, 1):
            row["digest"] = digest("later" if point == "after_restore" else "frozen")
    tables = case(replay_states={0: states, 1: state_rows(2)})
    assert [row[column] for row in trial_rows(tables)] == [True, False, True, True]
    found = case_finding(tables)
    assert found["self_proof"] == "failed"
    assert findings([found])["status"] == "failed"


def test_an_armed_run_with_other_outputs_fails_where_nothing_varies() -> None:
    armed = armed_step_rows(STEPS)
    for row in armed:
        if row["phase"] == "decode":
            row["logits_digest"] = digest("other")
    tables = case(armed_steps={0: armed, 1: armed})
    assert not any(row["equals_unarmed"] for row in trial_rows(tables))
    assert case_finding(tables)["armed_equals_unarmed"] == "failed"
    # Where outputs vary by themselves, another output shows nothing about arming.
    tables = case(armed_steps={0: armed, 1: armed}, boundaries=varied())
    assert case_finding(tables)["armed_equals_unarmed"] == "not_evaluated"

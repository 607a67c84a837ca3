"""What a localization finds: by case the earliest varying boundary in execution order.

Pure functions over a case's tables; whoever verifies a study calls them again. The earliest
boundary is where a difference is first *seen*: its cause lies between it and the one before.
"""

from collections.abc import Sequence
from typing import Any

from harness.laboratory.matrix import Boundary, Matrix, build_matrix
from harness.laboratory.trials import COMPLETED, CaseTables, trial_rows

STABLE = "stable"
VARYING = "varying"
FAILED = "failed"
NOT_EVALUATED = "not_evaluated"
PASSED = "passed"


def case_matrix(case: CaseTables) -> Matrix:
    """The matrix of a case's completed trials."""
    return build_matrix(
        {number: rows for number, rows in case.boundaries.items() if case.completed(number)}
    )


def case_finding(case: CaseTables) -> dict[str, Any]:
    """The finding of one case.

    ``state`` is ``not_evaluated`` with fewer than two completed trials: one trial cannot vary.
    """
    matrix, trials = case_matrix(case), trial_rows(case)
    completed = [row for row in trials if row["outcome"] == COMPLETED]
    varying = matrix.varying()
    state = VARYING if varying else STABLE
    if len(completed) < 2:
        state = NOT_EVALUATED
    first = varying[0] if varying else None
    return {
        "state": state,
        "num_trials": len(trials),
        "num_completed": len(completed),
        "num_boundaries": len(matrix.boundaries),
        "num_varying": len(varying),
        "earliest": None if first is None else _place(matrix, first),
        "self_proof": _all([row["changed_state"] and row["restored_state"] for row in completed]),
        "armed_equals_unarmed": _unarmed([row["equals_unarmed"] for row in completed], state),
    }


def findings(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The findings of a study from those of its cases."""
    failed = any(FAILED in (case["self_proof"], case["armed_equals_unarmed"]) for case in cases)
    states = {case["state"] for case in cases}
    for status in (VARYING, NOT_EVALUATED):
        if status in states:
            break
    else:
        status = STABLE if cases else NOT_EVALUATED
    return {"status": FAILED if failed else status, "cases": list(cases)}


def boundary_of(earliest: dict[str, Any]) -> Boundary:
    """The boundary that a finding names."""
    return Boundary(
        phase=earliest["phase"],
        step=earliest["step"],
        index=earliest["boundary"],
        name=earliest["name"],
    )


def _place(matrix: Matrix, place: int) -> dict[str, Any]:
    boundary = matrix.boundaries[place]
    return {
        "phase": boundary.phase,
        "step": boundary.step,
        "boundary": boundary.index,
        "name": boundary.name,
        "num_distinct": matrix.num_distinct(place),
        "varies_within_a_process": matrix.varies_within_a_process(place),
    }


def _all(proofs: Sequence[bool | None]) -> str:
    if not proofs:
        return NOT_EVALUATED
    return PASSED if all(proofs) else FAILED


def _unarmed(equal: Sequence[bool | None], state: str) -> str:
    """Whether arming changed nothing; where outputs vary by themselves nothing can be told."""
    if not equal or (state == VARYING and not all(equal)):
        return NOT_EVALUATED
    return PASSED if all(equal) else FAILED

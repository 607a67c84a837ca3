"""What paired one-factor interventions find: the cause, or nothing that is shown.

A factor is named the cause only if its control varies and its treatment does not, over equally many
completed trials of each. Anything else is "not shown", and a factor without a whole pair was not
executed. Pure functions over tables; whoever verifies a study calls them again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.laboratory.matrix import Matrix, build_matrix
from harness.laboratory.trials import COMPLETED, CaseTables, trial_rows

CONTROL, TREATMENT = "control", "treatment"
CAUSE, NOT_SHOWN, NOT_EXECUTED = "cause", "not_shown", "not_executed"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One run of an intervention."""

    factor: str
    arm: str
    """``control`` or ``treatment``."""
    pair: int


def arms_in_order(factors: Sequence[str], num_pairs: int) -> list[Arm]:
    """Every run in execution order, counterbalanced: the arm that comes first alternates.

    A drift in time then lies on both arms of a factor alike.
    """
    arms = []
    for factor in factors:
        for pair in range(num_pairs):
            first, second = (CONTROL, TREATMENT) if pair % 2 == 0 else (TREATMENT, CONTROL)
            arms += [Arm(factor=factor, arm=each, pair=pair) for each in (first, second)]
    return arms


def intervention_findings(
    factors: Sequence[str], arms: Sequence[Arm], tables: Sequence[CaseTables]
) -> dict[str, Any]:
    """The findings of a study.

    Args:
        factors: Every factor that was planned.
        arms: The runs that were executed, in order.
        tables: What was observed of each.
    """
    found = []
    for factor in factors:
        sides = {
            arm: _side([t for a, t in zip(arms, tables, strict=True) if (a.factor, a.arm) == key])
            for arm in (CONTROL, TREATMENT)
            for key in [(factor, arm)]
        }
        state, reason = _judge(sides[CONTROL], sides[TREATMENT])
        found.append({"factor": factor, "state": state, "reason": reason, **sides})
    return {
        "causes": [each["factor"] for each in found if each["state"] == CAUSE],
        "factors": found,
    }


def _side(runs: Sequence[CaseTables]) -> dict[str, Any]:
    """Counts of one arm over all of its runs."""
    trials = [row for run in runs for row in trial_rows(run)]
    matrix = merged(runs)
    varying = matrix.varying()
    return {
        "num_runs": len(runs),
        "num_trials": len(trials),
        "num_completed": sum(row["outcome"] == COMPLETED for row in trials),
        "num_varying": len(varying),
        "first_varying": matrix.boundaries[varying[0]].label if varying else None,
    }


def merged(runs: Sequence[CaseTables]) -> Matrix:
    """One matrix over the completed trials of several runs of one plan."""
    tables: dict[int, list[Mapping[str, Any]]] = {}
    for run in runs:
        for realization in sorted(run.boundaries):
            if run.completed(realization):
                tables[len(tables)] = list(run.boundaries[realization])
    return build_matrix(tables)


def _judge(control: Mapping[str, Any], treatment: Mapping[str, Any]) -> tuple[str, str]:
    if not control["num_runs"] or not treatment["num_runs"]:
        return NOT_EXECUTED, "not reached"
    counts = control["num_completed"], treatment["num_completed"]
    if min(counts) < 2 or counts[0] != counts[1]:
        return NOT_SHOWN, f"{counts[0]} and {counts[1]} completed trials, expected equally many"
    if not control["num_varying"]:
        return NOT_SHOWN, "the control does not vary"
    if treatment["num_varying"]:
        return NOT_SHOWN, "the treatment varies as well"
    return CAUSE, "the control varies, and the treatment does not"

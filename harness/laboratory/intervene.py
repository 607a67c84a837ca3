"""``intervene``: runs paired arms in counterbalanced order, and writes one study of them.

Every arm is an ordinary armed run of its own frozen plan. Imports no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import InvalidInputError
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate
from harness.laboratory.cases import FrozenCase
from harness.laboratory.intervention import CONTROL, Arm, arms_in_order, intervention_findings
from harness.laboratory.localize import (
    RunCases,
    boundaries_version,
    described,
    references,
    run_cases,
    tables_of,
)
from harness.laboratory.writing import draft, finish
from harness.measure.clock import utc_timestamp
from harness.realize.arming import Arming
from harness.run.progress import Progress
from harness.run.request import RunRequest

KIND = "intervention"
MAX_RUNS = 400


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One thing that is changed, and nothing else."""

    name: str
    override: str
    """What the treatment changes, as it was given."""
    control: FrozenCase
    treatment: FrozenCase


def intervene(
    base: RunRequest,
    factors: Sequence[Factor],
    arming: Arming,
    progress: Progress,
    *,
    num_pairs: int,
    max_runs: int = MAX_RUNS,
    execute_cases: RunCases = run_cases,
) -> tuple[str, StudyPredicate]:
    """Intervene on each factor; returns the study's digest in ``base.store``, and what it says.

    Args:
        base: Store, cache, device and command; plan and fault are each arm's.
        factors: In the order in which they are tried.
        arming: What every process observes.
        progress: Where the state of the runs is shown.
        num_pairs: Runs of each arm.
        max_runs: What lies beyond is not executed; only whole pairs are begun.
        execute_cases: Runs the arms; replaced in tests.

    Raises:
        InvalidInputError: When two factors have one name.
    """
    names = [factor.name for factor in factors]
    if len(set(names)) != len(names) or not names:
        raise InvalidInputError("factors need names of their own", got=", ".join(names))
    started_at = utc_timestamp()
    by_name = {factor.name: factor for factor in factors}
    arms = arms_in_order(names, num_pairs)[: max_runs - max_runs % 2]
    cases = [_case(by_name[arm.factor], arm) for arm in arms]
    observed = execute_cases(base, cases, arming, progress)
    tables, tensors, records, listed = references(observed)
    study = draft(
        kind=KIND,
        experiment=base.experiment,
        parameters={
            "arming": arming.document(),
            "boundaries_version": boundaries_version([factors[0].control]),
            "num_pairs": num_pairs,
            "factors": [{"name": f.name, "override": f.override} for f in factors],
            "cases": [
                described(each, record) | vars(arm)
                for each, record, arm in zip(observed, listed, arms, strict=True)
            ],
        },
        records=records,
        tables=tables,
        tensors=tensors,
        command=base.command,
        started_at=started_at,
    )
    rows = [tables_of(each, arming) for each in observed]
    return finish(Store(base.store), study, intervention_findings(names, arms, rows))


def arms_of(study: StudyPredicate) -> list[Arm]:
    """The runs of a study, in order."""
    return [
        Arm(factor=case["factor"], arm=case["arm"], pair=case["pair"])
        for case in study.parameters["cases"]
    ]


def _case(factor: Factor, arm: Arm) -> FrozenCase:
    return factor.control if arm.arm == CONTROL else factor.treatment

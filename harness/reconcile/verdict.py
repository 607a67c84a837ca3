"""What an audit returns: differences, a result per check, and the verdict over all of them.

Plain records; knows neither how a check works nor how a verdict is stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from harness.evidence.predicates import CheckResult, Status
from harness.plan.checks import ACCEPTANCE as REQUIRED

PASSED: Final = "passed"
FAILED: Final = "failed"
NOT_EVALUATED: Final = "not_evaluated"

ACCEPTANCE: Final = "acceptance"
TELEMETRY: Final = "telemetry"


@dataclass(frozen=True, kw_only=True, order=True)
class Difference:
    """One place where a record is not what its plan, or another of its tables, requires."""

    check: str
    path: str
    """``tables/<name>/r<realization>[<key>].<column>``, or ``$.<field>`` of the predicate."""
    expected: str
    got: str
    status: Status
    """``failed``, or ``not_evaluated`` where nothing could be compared."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Outcome of auditing one record against its plan."""

    status: Status
    checks: tuple[CheckResult, ...]
    """In the plan's order, acceptance first."""
    differences: tuple[Difference, ...]
    """Every difference, sorted."""
    result_digest: str | None
    """Recomputed from the tables; ``None`` when they do not suffice."""
    unbound: tuple[str, ...]
    """Places that no check binds, sorted."""


def status_of(differences: Sequence[Difference]) -> Status:
    """Status of one check from its differences: a failure outweighs what was not evaluated."""
    statuses = {difference.status for difference in differences}
    if FAILED in statuses:
        return FAILED
    return NOT_EVALUATED if statuses else PASSED


def overall(checks: Sequence[CheckResult]) -> Status:
    """Status of a verdict: of its acceptance checks, none of which may be missing to pass."""
    decisive = {check.id: check.status for check in checks if check.kind == ACCEPTANCE}
    statuses = set(decisive.values())
    if FAILED in statuses:
        return FAILED
    is_complete = REQUIRED.keys() <= decisive.keys()
    return PASSED if is_complete and statuses == {PASSED} else NOT_EVALUATED

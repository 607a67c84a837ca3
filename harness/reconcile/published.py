"""Audit a result of the published schema against its plan.

The whole document that a passing run of the plan must have written is computed from the plan,
and compared place by place; nothing the result says about itself is believed. What no plan
determines is listed as unbound.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import InvalidInputError
from harness.plan.load import LoadedPlan
from harness.plan.published import result_r1 as names
from harness.reconcile.compare import Mismatch, Unbound, broken, compare
from harness.reconcile.published_expected import expected_result
from harness.reconcile.published_relations import relations


@dataclass(frozen=True, kw_only=True)
class PublishedReport:
    """Outcome of auditing one published pair."""

    status: str
    """``passed`` or ``failed``."""
    differences: tuple[Mismatch, ...]
    """Every place that differs, sorted by JSON path."""
    unbound: tuple[Unbound, ...]
    """Every place whose value nothing determines, sorted by JSON path."""


def audit_published(plan: LoadedPlan, result: Mapping[str, Any]) -> PublishedReport:
    """Compare a published result with the plan it says it realized.

    Args:
        plan: A loaded plan of the published schema, with its file's digest.
        result: The parsed result document.

    Raises:
        InvalidInputError: When the plan has another schema.
    """
    if plan.plan.schema != names.PLAN_SCHEMA:
        raise InvalidInputError(
            "not a plan of the published schema",
            expected=names.PLAN_SCHEMA,
            got=plan.plan.schema,
            hint="audit a record against a native plan with its store",
        )
    mismatches, unbound = compare(expected_result(plan), result)
    mismatches.extend(broken(relations(plan.plan), result))
    return PublishedReport(
        status="failed" if mismatches else "passed",
        differences=tuple(sorted(set(mismatches))),
        unbound=tuple(sorted(unbound)),
    )

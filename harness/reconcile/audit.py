"""Audit one native record against its plan: run every declared check, and give the verdict.

Works from the plan, its manifest and table rows only. A check that trips over malformed rows is a
failed check, never a crash. Knows no model: exact tensors come from a layout that is handed in.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Literal

from harness.errors import HarnessError, InvalidInputError
from harness.evidence.predicates import CheckResult
from harness.evidence.record import LoadedRecord
from harness.plan.layout import AdapterLayout, Form, TensorSpec
from harness.plan.load import LoadedPlan
from harness.plan.manifest import ManifestEntry
from harness.plan.partition import prefill_partition
from harness.plan.records import Checks, Workload
from harness.plan.request import planned_tensors
from harness.plan.stages import stage_views
from harness.reconcile.checks.registry import CHECKS, WHOLE
from harness.reconcile.findings import Findings
from harness.reconcile.result import recomputed_result_digest
from harness.reconcile.unbound import unbound_paths
from harness.reconcile.verdict import (
    ACCEPTANCE,
    TELEMETRY,
    Difference,
    Verdict,
    overall,
    status_of,
)
from harness.reconcile.view import Subject, View, conditions_of

Kind = Literal["acceptance", "telemetry"]
MAX_REALIZATIONS = 1000
MAX_STEPS = 1 << 20
_GROUPS: tuple[Kind, ...] = (ACCEPTANCE, TELEMETRY)


def audit(
    plan: LoadedPlan,
    manifest: Sequence[ManifestEntry] | None,
    record: LoadedRecord,
    *,
    layout: AdapterLayout | None,
) -> Verdict:
    """Judge one record.

    Args:
        plan: The plan that the record says it is about.
        manifest: The plan's tensor manifest, or ``None`` when it cannot be had.
        record: The record, with the store that holds its tables.
        layout: The family's layout, for the exact tensors of each representation; without one
            tensors are compared with the fixture maker's alone.

    Returns:
        The verdict, with every difference, sorted.

    Raises:
        InvalidInputError: When the plan declares no checks (a published plan).
    """
    if plan.plan.checks is None or plan.plan.workload is None:
        raise InvalidInputError(
            "this plan declares no checks to audit by",
            expected="a plan of schema harness.plan/1",
            got=plan.plan.schema,
            hint="a published plan is reconciled with its published result",
        )
    _refuse_absurd(plan.plan.workload)
    subject = _subject(plan, manifest, record, layout)
    differences: list[Difference] = []
    results = []
    for kind, identifier in _declared(plan.plan.checks):
        found = tuple(_merged(_run(subject, identifier)))
        differences.extend(found)
        results.append(
            CheckResult(
                id=identifier,
                kind=kind,
                status=status_of(found),
                num_differences=len(found),
            )
        )
    return Verdict(
        status=overall(results),
        checks=tuple(results),
        differences=tuple(sorted(differences)),
        result_digest=subject.result_digest,
        unbound=unbound_paths(evicts=subject.evicts, has_stages=plan.plan.stages is not None),
    )


def _subject(
    plan: LoadedPlan,
    manifest: Sequence[ManifestEntry] | None,
    record: LoadedRecord,
    layout: AdapterLayout | None,
) -> Subject:
    """What checks look at: the whole record, and each stage of it as a record of its own."""
    assert plan.plan.workload is not None
    stages = range(len(plan.plan.stages or ()))
    view = View(record, plan.plan.workload.fresh_realizations, stages or (None,))
    result, problem = _result(plan, record, view)
    conditions = conditions_of(plan.plan, record.predicate)
    whole = Subject(
        loaded=plan,
        manifest=manifest,
        record=record,
        view=view,
        conditions=conditions,
        support=layout,
        specs=None if stages else _specs(plan, manifest, layout),
        result_digest=result,
        result_problem=problem,
    )
    parts = []
    for each in stage_views(plan.plan, layout, manifest):
        loaded = replace(plan, plan=each.plan)
        own = each.manifest if layout is not None else None
        parts.append(
            replace(
                whole,
                loaded=loaded,
                manifest=own,
                view=view.of_stage(each.number),
                specs=_specs(loaded, own, layout),
            )
        )
    return replace(whole, parts=tuple(parts))


def _refuse_absurd(workload: Workload) -> None:
    """Bound the audit's time: a few bytes of a plan can imply any number of rows."""
    chunks = len(prefill_partition(workload))
    steps = chunks + workload.repetitions * workload.decode_steps
    if workload.fresh_realizations > MAX_REALIZATIONS or steps > MAX_STEPS:
        raise InvalidInputError(
            "the plan's workload is too large to be audited",
            expected=f"at most {MAX_REALIZATIONS} realizations of {MAX_STEPS} steps",
            got=f"{workload.fresh_realizations} realizations of {steps} steps",
            where="$.workload",
        )


def _declared(checks: Checks) -> list[tuple[Kind, str]]:
    """Kind and id of every declared check, each id once; acceptance outweighs telemetry."""
    kinds: dict[str, Kind] = {}
    for kind, listed in zip(_GROUPS, (checks.acceptance, checks.telemetry), strict=True):
        for check in listed:
            kinds.setdefault(check.id, kind)
    return [(kind, identifier) for identifier, kind in kinds.items()]


def _run(subject: Subject, identifier: str) -> list[Difference]:
    findings = Findings(identifier)
    check = CHECKS.get(identifier)
    if check is None:
        findings.differ("$.checks", "a check that this auditor has", identifier)
        return findings.differences
    # What one process is judged by is judged of each stage's; the rest, of all of them together.
    subjects = subject.parts if subject.parts and identifier not in WHOLE else (subject,)
    try:
        for each in subjects:
            check(each, findings)
    except (
        HarnessError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        # Rows have declared types but any values; what a check cannot digest has failed it.
        findings.differ("$", "rows that can be judged", f"{type(error).__name__}: {error}")
    return findings.differences


def _merged(differences: list[Difference]) -> Iterator[Difference]:
    """One difference per check and place, sorted: what a table of them can hold."""
    for (check, path), listed in groupby(sorted(differences), key=lambda d: (d.check, d.path)):
        group = list(listed)
        yield Difference(
            check=check,
            path=path,
            expected="; ".join(dict.fromkeys(difference.expected for difference in group)),
            got="; ".join(dict.fromkeys(difference.got for difference in group)),
            status=status_of(group),
        )


def _specs(
    plan: LoadedPlan, manifest: Sequence[ManifestEntry] | None, layout: AdapterLayout | None
) -> dict[Form, tuple[TensorSpec, ...]] | None:
    if manifest is None or layout is None:
        return None
    return planned_tensors(plan.plan, layout, manifest)


def _result(plan: LoadedPlan, record: LoadedRecord, view: View) -> tuple[str | None, str]:
    key = record.predicate.applicability_key
    try:
        return recomputed_result_digest(plan, key, view), ""
    except HarnessError as error:
        return None, str(error)

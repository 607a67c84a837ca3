"""Judge files: find a record's manifest, audit it, and keep the verdict beside it in the store.

The one place of this room that writes. Knows stores and files; what is judged is in ``audit``.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harness
from harness.canonical import read_json
from harness.errors import ExitCode, HarnessError
from harness.evidence import tables
from harness.evidence.predicates import (
    AuditorIdentity,
    DifferencesReference,
    VerdictPredicate,
)
from harness.evidence.record import LoadedRecord
from harness.evidence.source import package_digest
from harness.evidence.statement import verdict_statement
from harness.plan.layout import AdapterLayout
from harness.plan.load import LoadedPlan
from harness.plan.manifest import ManifestEntry, load_manifest, parse_manifest
from harness.plan.published.result_r1 import RESULT_SCHEMA
from harness.reconcile.audit import audit
from harness.reconcile.verdict import FAILED, PASSED, Verdict

LayoutFor = Callable[[str], AdapterLayout]
"""Finds a family's layout by name; raises for an unknown one."""
MAX_RESULT_BYTES = 16 << 20

EXIT_CODES: Mapping[str, ExitCode] = {PASSED: ExitCode.PASSED, FAILED: ExitCode.FAILED}


def exit_code(status: str) -> ExitCode:
    """Exit code of a verdict's status."""
    return EXIT_CODES.get(status, ExitCode.NOT_EVALUABLE)


def judge(
    plan: LoadedPlan, record: LoadedRecord, *, layout_for: LayoutFor | None = None
) -> Verdict:
    """Audit one record against a plan; the manifest is found in the store or beside the plan.

    Args:
        plan: The plan, as a person or the supervisor pinned it.
        record: The record, in its store.
        layout_for: Gives the layout of the plan's family; ``None`` audits without one.

    Raises:
        InvalidInputError: When the plan declares no checks, or its family is not known.
    """
    family = plan.plan.adapter_data.family
    layout = layout_for(family) if layout_for is not None and family is not None else None
    return audit(plan, find_manifest(plan, record), record, layout=layout)


def find_manifest(plan: LoadedPlan, record: LoadedRecord) -> tuple[ManifestEntry, ...] | None:
    """The manifest that the plan pins, from the record's store or the plan's folder."""
    if plan.plan.checkpoint is None:
        return None
    reference = plan.plan.checkpoint.manifest
    try:
        data = record.store.read("manifests", reference.digest)
        return parse_manifest(data, where=str(record.store.path("manifests", reference.digest)))
    except HarnessError:
        if plan.path is None:
            return None
    try:
        return load_manifest(plan.path.parent, reference)
    except HarnessError:
        return None


def store_verdict(plan: LoadedPlan, record: LoadedRecord, verdict: Verdict) -> str:
    """Write the verdict and its table of differences into the record's store.

    Returns:
        The verdict's digest.
    """
    rows = [asdict(difference) for difference in verdict.differences]
    data, num_rows = tables.encode("differences", rows)
    predicate = VerdictPredicate(
        plan_digest=plan.plan.digest,
        record_digest=record.digest,
        auditor=AuditorIdentity(version=harness.__version__, package_digest=package_digest()),
        status=verdict.status,
        checks=verdict.checks,
        differences=DifferencesReference(
            digest=record.store.put_table(data), num_rows=num_rows, size_bytes=len(data)
        ),
        result_digest=verdict.result_digest,
        unbound=verdict.unbound,
    )
    return record.store.put_verdict(verdict_statement(predicate))


def answer(
    plan: LoadedPlan, record: LoadedRecord, verdict: Verdict, verdict_digest: str | None
) -> dict[str, Any]:
    """The verdict in short, as an auditor says it to the process that started it."""
    return {
        "status": verdict.status,
        "plan_digest": plan.plan.digest,
        "record_digest": record.digest,
        "verdict_digest": verdict_digest,
        "result_digest": verdict.result_digest,
        "num_differences": len(verdict.differences),
        "checks": [asdict(check) for check in verdict.checks],
    }


def read_published_result(path: Path) -> dict[str, Any] | None:
    """Read a file as a published result; ``None`` when it is of another kind.

    Raises:
        InvalidInputError: When it is no strict JSON.
    """
    document = read_json(path, max_bytes=MAX_RESULT_BYTES)
    is_result = isinstance(document, dict) and document.get("schema") == RESULT_SCHEMA
    return document if is_result else None

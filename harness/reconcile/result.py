"""The result of a record: what every faithful run of one plan under one key must repeat.

Tokens, digests of outputs, states and tensors, requested bytes and recomputed statuses; never a
time, a resident or an unplanned byte. The supervisor writes its digest, the auditor recomputes it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Protocol

from harness.canonical import canonical_bytes, sha256_digest
from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.predicates import ApplicabilityKey
from harness.evidence.tables import table_place
from harness.plan.load import LoadedPlan
from harness.plan.records import Plan
from harness.reconcile.findings import Row
from harness.reconcile.intent import recomputed_status

SCHEMA = "harness.result/1"
Tables = Mapping[str, Mapping[int | None, Iterable[Row]]]
"""Rows by table name and realization."""
Key = ApplicabilityKey | Mapping[str, Any] | None

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "steps": (
        "repetition",
        "phase",
        "step",
        "start_position",
        "num_rows",
        "token",
        "plane_digest",
        "logits_digest",
    ),
    "states": ("repetition", "point", "name", "bytes", "digest"),
    "tensors": ("materialization_id", "name", "point", "dtype", "shape", "bytes", "digest"),
}
_BYTES = ("requested_bytes", "bytes_before_release", "bytes_after_release")


class RowSource(Protocol):
    """Where the rows of one table of one realization come from."""

    def rows(
        self, name: str, realization: int | None = None, stage: int | None = None
    ) -> list[Row] | None:
        """The rows, or ``None`` when there is no such table."""


def result_document(plan: LoadedPlan, applicability_key: Key, tables: Tables) -> dict[str, Any]:
    """Collect the result of one record; the order of rows does not matter.

    Args:
        plan: The plan that was run.
        applicability_key: The conditions under which its digests may be compared.
        tables: Rows by table name and realization.

    Raises:
        EvidenceError: When a table that the result needs is missing in some realization.
    """
    return _document(plan, applicability_key, _Given({None: tables}))


def result_digest(
    plan: LoadedPlan,
    applicability_key: Key,
    tables: Tables,
    stages: Mapping[int | None, Tables] | None = None,
) -> str:
    """Digest of :func:`result_document`: ``sha256:`` over its RFC 8785 bytes.

    Args:
        plan: The plan that was run.
        applicability_key: The conditions under which its digests may be compared.
        tables: Rows by table name and realization, where the plan has no stages.
        stages: The same of each of its stages, by number.
    """
    return recomputed_result_digest(plan, applicability_key, _Given(stages or {None: tables}))


def recomputed_result_digest(plan: LoadedPlan, applicability_key: Key, source: RowSource) -> str:
    """Like :func:`result_digest`, with rows read from a record."""
    document = _document(plan, applicability_key, source)
    try:
        return sha256_digest(canonical_bytes(document))
    except InvalidInputError as error:
        raise EvidenceError("tables hold values that no result has", got=str(error.got)) from error


class _Given:
    def __init__(self, tables: Mapping[int | None, Tables]) -> None:
        self._tables = tables

    def rows(
        self, name: str, realization: int | None = None, stage: int | None = None
    ) -> list[Row] | None:
        found = self._tables.get(stage, {}).get(name, {}).get(realization)
        return None if found is None else list(found)


def _document(plan: LoadedPlan, applicability_key: Key, source: RowSource) -> dict[str, Any]:
    workload = plan.plan.workload
    if workload is None:
        raise EvidenceError("a plan without a workload has no result", got=plan.plan.schema)
    return {
        "schema": SCHEMA,
        "plan_digest": plan.plan.digest,
        "applicability_key": _plain(applicability_key),
        "realizations": [
            _realization(plan.plan, source, index) for index in range(workload.fresh_realizations)
        ],
    }


def _plain(key: Key) -> Any:
    return asdict(key) if is_dataclass(key) else key


def _realization(plan: Plan, source: RowSource, index: int) -> dict[str, Any]:
    if plan.stages is None:
        return _process(plan, source, index, None)
    numbers = range(len(plan.stages))
    return {"stages": [_process(plan, source, index, number) for number in numbers]}


def _process(plan: Plan, source: RowSource, index: int, stage: int | None) -> dict[str, Any]:
    """What one process, of one stage or of all, gave."""
    document: dict[str, Any] = {}
    for name, columns in _COLUMNS.items():
        rows = _rows(source, name, index, stage)
        document[name] = _sorted([{column: row[column] for column in columns} for row in rows])
    intents = {intent.id: intent for intent in plan.materializations}
    document["materializations"] = _sorted(
        [
            {
                "id": row["id"],
                "status": recomputed_status(intents[row["id"]], row)
                if row["id"] in intents
                else "UNPLANNED",
                **{column: row[column] for column in _BYTES},
            }
            for row in _rows(source, "materializations", index, stage)
        ]
    )
    return document


def _rows(source: RowSource, name: str, index: int, stage: int | None) -> list[Row]:
    rows = source.rows(name, index, stage)
    if rows is None:
        raise EvidenceError(
            "a table that makes the result is missing",
            expected=f"tables/{table_place(name, index, stage)}",
            hint="an aborted run has no result",
        )
    return rows


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # All rows of one list have their columns in one order, so that equal rows read equal.
    return sorted(rows, key=repr)

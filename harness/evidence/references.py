"""What the statements of a store name: files that a store must hold beside them.

Knows every kind of statement, nothing of where or whether the files are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import EvidenceError
from harness.evidence.statement import (
    RECORD_TYPE,
    VERDICT_TYPE,
    parse_statement,
    record_predicate,
    verdict_predicate,
)
from harness.evidence.store import Kind
from harness.evidence.studies import STUDY_TYPE, parse_study, study_predicate
from harness.evidence.tables import WrittenTable

STATEMENT_TYPES: Mapping[Kind, str] = {
    "records": RECORD_TYPE,
    "verdicts": VERDICT_TYPE,
    "studies": STUDY_TYPE,
}
"""Kinds of statements; each names files that name nothing, and statements of kinds before it."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One statement naming one file."""

    kind: Kind
    digest: str
    label: str
    referrer: Path
    table: WrittenTable | None = None


def parse_kind(kind: Kind, path: Path) -> dict[str, Any]:
    """Parse and check the file of a statement of one kind.

    Raises:
        InvalidInputError: When it is not one.
    """
    return parse_kind_bytes(kind, path.read_bytes(), where=str(path))


def parse_kind_bytes(kind: Kind, data: bytes, *, where: str) -> dict[str, Any]:
    """Parse and check the bytes of a statement of one kind (see :func:`parse_kind`)."""
    if kind == "studies":
        return parse_study(data, where=where)
    statement = parse_statement(data, where=where)
    if statement["predicateType"] != STATEMENT_TYPES[kind]:
        raise EvidenceError(f"another kind of statement among the {kind}", where=where)
    return statement


def references_of(statement: Mapping[str, Any], path: Path) -> list[Reference]:
    """What a checked statement names; ``path`` is the statement's own file."""

    def refer(kind: Kind, digest: str, label: str, table: WrittenTable | None = None) -> Reference:
        return Reference(kind=kind, digest=digest, label=label, referrer=path, table=table)

    if statement["predicateType"] == VERDICT_TYPE:
        verdict = verdict_predicate(statement)
        table = verdict.differences.table()
        return [
            refer("records", verdict.record_digest, "the audited record"),
            refer("tables", table.digest, "table differences", table),
        ]
    if statement["predicateType"] == STUDY_TYPE:
        study = study_predicate(statement)
        return [
            *(refer("records", digest, "a studied record") for digest in study.records),
            *(
                refer("tables", table.digest, f"table {table.name}", table.written())
                for table in study.tables
            ),
            *(refer("tensors", file.digest, "kept tensors") for file in study.tensors),
        ]
    record = record_predicate(statement)
    found = [refer("plans", record.plan.file_digest, "the plan")]
    if record.manifest_digest is not None:
        found.append(refer("manifests", record.manifest_digest, "the tensor manifest"))
    for table in record.tables:
        suffix = "" if table.realization is None else f" of realization {table.realization}"
        suffix += "" if table.stage is None else f", stage {table.stage}"
        found.append(refer("tables", table.digest, f"table {table.name}{suffix}", table))
    return found

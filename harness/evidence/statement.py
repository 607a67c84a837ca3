"""Record and verdict statements: the one JSON form each predicate has.

A statement is an in-toto v1 envelope in canonical JSON of at most 64 KB. Reading and writing apply
the same rules: the JSON Schema, a subject list that agrees with the predicate, and canonical bytes.
Knows the form of statements, nothing of where they are kept and nothing of how they are judged.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from harness.canonical import bare_hex, canonical_bytes, parse_json
from harness.errors import EvidenceError
from harness.evidence.declared import TABLES
from harness.evidence.documents import refuse, schema_errors
from harness.evidence.predicates import (
    RECORD_SCHEMA,
    VERDICT_SCHEMA,
    ApplicabilityKey,
    AuditorIdentity,
    BindingReference,
    CheckResult,
    Claim,
    DifferencesReference,
    FixtureReference,
    Label,
    ModelReference,
    PlanReference,
    RecordPredicate,
    SourceIdentity,
    Status,
    VerdictPredicate,
)
from harness.evidence.tables import WrittenTable, table_place

__all__ = [
    "MAX_RECORD_CELLS",
    "MAX_STATEMENT_BYTES",
    "RECORD_SCHEMA",
    "RECORD_TYPE",
    "STATEMENT_TYPE",
    "VERDICT_SCHEMA",
    "VERDICT_TYPE",
    "ApplicabilityKey",
    "AuditorIdentity",
    "BindingReference",
    "CheckResult",
    "Claim",
    "DifferencesReference",
    "FixtureReference",
    "Label",
    "ModelReference",
    "PlanReference",
    "RecordPredicate",
    "SourceIdentity",
    "Status",
    "VerdictPredicate",
    "WrittenTable",
    "check_statement",
    "encode_statement",
    "parse_statement",
    "record_predicate",
    "record_statement",
    "verdict_predicate",
    "verdict_statement",
]

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
RECORD_TYPE = "urn:harness:record:1"
VERDICT_TYPE = "urn:harness:verdict:1"
MAX_STATEMENT_BYTES = 64 * 1024
MAX_RECORD_CELLS = 1 << 25
"""Most values of all tables of a record, since an audit holds every row."""
_SCHEMA_FILES = {RECORD_TYPE: "record-1.schema.json", VERDICT_TYPE: "verdict-1.schema.json"}


def record_statement(predicate: RecordPredicate) -> dict[str, Any]:
    """Wrap a record's predicate into its statement; tables are put in order.

    Raises:
        EvidenceError: When the statement breaks the schema, repeats a table, or exceeds 64 KB.
    """
    document = _plain(predicate)
    for table in document["tables"]:
        if table["stage"] is None:
            del table["stage"]
    document["tables"].sort(key=_table_order)
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": _record_subjects(document),
        "predicateType": RECORD_TYPE,
        "predicate": document,
    }
    encode_statement(statement)
    return statement


def verdict_statement(predicate: VerdictPredicate) -> dict[str, Any]:
    """Wrap a verdict's predicate into its statement.

    Raises:
        EvidenceError: When the statement breaks the schema, contradicts itself, or exceeds 64 KB.
    """
    document = _plain(predicate)
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": _verdict_subjects(document),
        "predicateType": VERDICT_TYPE,
        "predicate": document,
    }
    encode_statement(statement)
    return statement


def encode_statement(statement: Mapping[str, Any], *, where: str = "statement") -> bytes:
    """Canonical bytes of a checked statement, as a store keeps them."""
    data = canonical_bytes(dict(statement))
    _check_size(data, where)
    check_statement(statement, where=where)
    return data


def parse_statement(data: bytes, *, where: str) -> dict[str, Any]:
    """Parse and check the bytes of one statement.

    Raises:
        InvalidInputError: When they are not strict JSON.
        EvidenceError: When they are too long, not canonical, or break a rule of their type.
    """
    _check_size(data, where)
    statement = parse_json(data, where=where, max_bytes=MAX_STATEMENT_BYTES)
    _require_known(statement, where)
    refuse("statement breaks its rules", list(_broken_rules_of(data)), where=where)
    if canonical_bytes(statement) != data:
        raise EvidenceError(
            "statement is not canonical JSON", expected="RFC 8785 bytes", where=where
        )
    parsed: dict[str, Any] = statement
    return parsed


def record_predicate(statement: Mapping[str, Any]) -> RecordPredicate:
    """Read the predicate of a checked record statement into its type."""
    _require_type(statement, RECORD_TYPE)
    document = dict(statement["predicate"])
    plan = dict(document["plan"])
    key, fixture = document["applicability_key"], document["fixture"]
    return RecordPredicate(
        **document
        | {
            "plan": PlanReference(**plan | {"model": ModelReference(**plan["model"])}),
            "binding": BindingReference(**document["binding"]),
            "applicability_key": None if key is None else ApplicabilityKey(**key),
            "fixture": None if fixture is None else FixtureReference(**fixture),
            "source": SourceIdentity(**document["source"]),
            "tables": tuple(WrittenTable(**table) for table in document["tables"]),
            "claims": tuple(Claim(**claim) for claim in document["claims"]),
            "command": tuple(document["command"]),
        }
    )


def verdict_predicate(statement: Mapping[str, Any]) -> VerdictPredicate:
    """Read the predicate of a checked verdict statement into its type."""
    _require_type(statement, VERDICT_TYPE)
    document = dict(statement["predicate"])
    return VerdictPredicate(
        **document
        | {
            "auditor": AuditorIdentity(**document["auditor"]),
            "checks": tuple(CheckResult(**check) for check in document["checks"]),
            "differences": DifferencesReference(**document["differences"]),
            "unbound": tuple(document["unbound"]),
        }
    )


def check_statement(statement: Any, *, where: str) -> None:
    """Check a statement against its schema and against itself.

    Raises:
        EvidenceError: Naming every broken rule, sorted.
    """
    _require_known(statement, where)
    refuse("statement breaks its rules", _broken_rules(statement), where=where)


def _require_known(statement: Any, where: str) -> None:
    kind = statement.get("predicateType") if isinstance(statement, Mapping) else None
    if not isinstance(kind, str) or kind not in _SCHEMA_FILES:
        raise EvidenceError(
            "not a statement that is known here",
            expected=" or ".join(sorted(_SCHEMA_FILES)),
            got=repr(kind)[:200],
            where=where,
        )


def _broken_rules(statement: Mapping[str, Any]) -> list[str]:
    kind = statement["predicateType"]
    problems = schema_errors(_SCHEMA_FILES[kind], statement)
    if not problems:
        check = _record_errors if kind == RECORD_TYPE else _verdict_errors
        problems = sorted(check(statement["subject"], statement["predicate"]))
    return problems


@lru_cache(maxsize=64)
def _broken_rules_of(data: bytes) -> tuple[str, ...]:
    """By the bytes: a store's statements are read by its check and by the audit, and the same
    bytes break the same rules."""
    return tuple(_broken_rules(parse_json(data, where="statement")))


def _record_subjects(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    subjects = [("plan", document["plan"]["file_digest"])]
    for table in document["tables"]:
        place = table_place(table["name"], table["realization"], table.get("stage"))
        subjects.append((f"tables/{place}", table["digest"]))
    return [{"name": name, "digest": {"sha256": bare_hex(digest)}} for name, digest in subjects]


def _verdict_subjects(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "record", "digest": {"sha256": bare_hex(document["record_digest"])}}]


def _record_errors(subjects: list[Any], document: Mapping[str, Any]) -> list[str]:
    problems = []
    if subjects != _record_subjects(document):
        problems.append("$.subject: does not agree with predicate.plan and predicate.tables")
    order = [_table_order(table) for table in document["tables"]]
    if order != sorted(order):
        problems.append("$.predicate.tables: not sorted by name, realization and stage")
    if len(set(order)) != len(order):
        problems.append("$.predicate.tables: a table is named twice")
    cells = 0
    for table in document["tables"]:
        if table["name"] in TABLES:
            cells += table["num_rows"] * len(TABLES[table["name"]].columns)
        else:
            problems.append(f"$.predicate.tables: unknown table {table['name']}")
    if cells > MAX_RECORD_CELLS:
        text = f"$.predicate.tables: {cells} values in all, at most {MAX_RECORD_CELLS} are read"
        problems.append(text)
    for name in ("started_at", "ended_at"):
        try:
            datetime.fromisoformat(document[name])
        except ValueError:
            problems.append(f"$.predicate.{name}: not a date and time")
    return problems


def _verdict_errors(subjects: list[Any], document: Mapping[str, Any]) -> list[str]:
    problems = []
    if subjects != _verdict_subjects(document):
        problems.append("$.subject: does not agree with predicate.record_digest")
    ids = [check["id"] for check in document["checks"]]
    if len(set(ids)) != len(ids):
        problems.append("$.predicate.checks: a check is listed twice")
    accepted = all(
        check["status"] == "passed" for check in document["checks"] if check["kind"] == "acceptance"
    )
    if document["status"] == "passed" and not accepted:
        problems.append("$.predicate.status: passed, though an acceptance check is not")
    return problems


def _table_order(table: Mapping[str, Any]) -> tuple[str, int, int]:
    places = (table["realization"], table.get("stage"))
    realization, stage = (-1 if place is None else place for place in places)
    return table["name"], realization, stage


def _check_size(data: bytes, where: str) -> None:
    if len(data) > MAX_STATEMENT_BYTES:
        raise EvidenceError(
            "statement is too long",
            expected=f"at most {MAX_STATEMENT_BYTES} bytes",
            got=f"{len(data)} bytes",
            where=where,
            hint="put details into table rows",
        )


def _require_type(statement: Mapping[str, Any], kind: str) -> None:
    if statement.get("predicateType") != kind:
        raise EvidenceError(
            "another kind of statement", expected=kind, got=str(statement.get("predicateType"))
        )


def _plain(value: Any) -> Any:
    """Dataclasses and tuples as the JSON values they are written as."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value

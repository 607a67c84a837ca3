"""Study statements: what a laboratory made of records, and the tables and tensors it rests on.

A study is an in-toto v1 envelope in canonical JSON, as records and verdicts are. Its ``parameters``
say what was done, its ``findings`` what follows; whoever verifies a study computes the findings
again from the tables. Knows the form of studies, nothing of any analysis.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from harness.canonical import bare_hex, canonical_bytes, parse_json
from harness.errors import EvidenceError
from harness.evidence.documents import refuse, schema_errors
from harness.evidence.predicates import SourceIdentity
from harness.evidence.study_tables import STUDY_TABLES
from harness.evidence.tables import WrittenTable

STUDY_TYPE = "urn:harness:study:1"
STUDY_SCHEMA = "harness.study/1"
MAX_STUDY_BYTES = 4 << 20
MAX_STUDY_TABLES = 8000
"""As the schema has it."""
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_SCHEMA_FILE = "study-1.schema.json"


@dataclass(frozen=True, kw_only=True)
class StudyTable:
    """A reference to one table of a study."""

    case: int | None
    """Which case of the study it is about; ``None`` when it covers all of it."""
    name: str
    realization: int | None
    digest: str
    num_rows: int
    size_bytes: int

    def written(self) -> WrittenTable:
        """The reference as a store reads it."""
        return WrittenTable(
            name=self.name,
            realization=self.realization,
            digest=self.digest,
            num_rows=self.num_rows,
            size_bytes=self.size_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class StoredTensors:
    """A reference to one file of kept tensors."""

    case: int | None
    realization: int | None
    digest: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class StudyPredicate:
    """Everything a study says, apart from the rows of its tables."""

    kind: str
    """``localization``, ``comparison``, ``replay``, ``intervention``, ``campaign``, ``state``."""
    experiment: str | None
    parameters: Mapping[str, Any]
    records: tuple[str, ...]
    """Digests of the records it rests on, in the order in which the parameters speak of them."""
    tables: tuple[StudyTable, ...]
    tensors: tuple[StoredTensors, ...]
    findings: Mapping[str, Any]
    source: SourceIdentity
    command: tuple[str, ...]
    """Redacted."""
    started_at: str
    ended_at: str
    schema: str = STUDY_SCHEMA


def study_statement(predicate: StudyPredicate) -> dict[str, Any]:
    """Wrap a study's predicate into its statement; references are put in order.

    Raises:
        EvidenceError: When the statement breaks the schema or is too long.
    """
    document = parse_json(canonical_bytes(asdict(predicate)), where="study")
    document["tables"].sort(key=_order)
    document["tensors"].sort(key=_order)
    statement = {
        "_type": _STATEMENT_TYPE,
        "subject": _subjects(document),
        "predicateType": STUDY_TYPE,
        "predicate": document,
    }
    encode_study(statement)
    return statement


def encode_study(statement: Mapping[str, Any], *, where: str = "study") -> bytes:
    """Canonical bytes of a checked study, as a store keeps them."""
    data = canonical_bytes(dict(statement))
    _check(statement, data, where)
    return data


def parse_study(data: bytes, *, where: str) -> dict[str, Any]:
    """Parse and check the bytes of one study.

    Raises:
        InvalidInputError: When they are not strict JSON.
        EvidenceError: When they are too long, not canonical, or break a rule.
    """
    statement: Any = parse_json(data, where=where, max_bytes=MAX_STUDY_BYTES)
    _check(statement, data, where)
    if canonical_bytes(statement) != data:
        raise EvidenceError("study is not canonical JSON", expected="RFC 8785 bytes", where=where)
    parsed: dict[str, Any] = statement
    return parsed


def study_predicate(statement: Mapping[str, Any]) -> StudyPredicate:
    """Read the predicate of a checked study into its type."""
    document = dict(statement["predicate"])
    return StudyPredicate(
        **document
        | {
            "records": tuple(document["records"]),
            "tables": tuple(StudyTable(**table) for table in document["tables"]),
            "tensors": tuple(StoredTensors(**file) for file in document["tensors"]),
            "source": SourceIdentity(**document["source"]),
            "command": tuple(document["command"]),
        }
    )


def _check(statement: Any, data: bytes, where: str) -> None:
    if len(data) > MAX_STUDY_BYTES:
        raise EvidenceError(
            "study is too long",
            expected=f"at most {MAX_STUDY_BYTES} bytes",
            got=f"{len(data)} bytes",
            where=where,
            hint="study fewer cases at once",
        )
    problems = schema_errors(_SCHEMA_FILE, statement)
    if not problems:
        problems = sorted(_errors(statement["subject"], statement["predicate"]))
    refuse("study breaks its rules", problems, where=where)


def _errors(subjects: list[Any], document: Mapping[str, Any]) -> list[str]:
    problems = []
    if subjects != _subjects(document):
        problems.append("$.subject: does not agree with what the predicate names")
    for field in ("tables", "tensors"):
        order = [_order(item) for item in document[field]]
        if order != sorted(order) or len(set(order)) != len(order):
            problems.append(f"$.predicate.{field}: not sorted, or something is named twice")
    for table in document["tables"]:
        if table["name"] not in STUDY_TABLES:
            problems.append(f"$.predicate.tables: unknown table {table['name']}")
    for name in ("started_at", "ended_at"):
        try:
            datetime.fromisoformat(document[name])
        except ValueError:
            problems.append(f"$.predicate.{name}: not a date and time")
    return problems


def _subjects(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    named = [(f"records/{index}", digest) for index, digest in enumerate(document["records"])]
    named += [(f"tables/{_place(t)}/{t['name']}", t["digest"]) for t in document["tables"]]
    named += [(f"tensors/{_place(file)}", file["digest"]) for file in document["tensors"]]
    return [{"name": name, "digest": {"sha256": bare_hex(digest)}} for name, digest in named]


def _place(item: Mapping[str, Any]) -> str:
    case, realization = item["case"], item["realization"]
    return "/".join(
        [
            "all" if case is None else f"c{case}",
            *(() if realization is None else (f"r{realization}",)),
        ]
    )


def _order(item: Mapping[str, Any]) -> tuple[int, str, int]:
    return (
        -1 if item["case"] is None else item["case"],
        item.get("name", ""),
        -1 if item["realization"] is None else item["realization"],
    )

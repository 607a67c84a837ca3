"""The differences of two records: what they are about, what they found, and how it was.

Digests of computed numbers are compared only under equal applicability keys; other columns always.
Knows tables by their declarations, nothing of what a row means.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.evidence.declared import TABLES, Table
from harness.evidence.record import LoadedRecord, Rows
from harness.evidence.statement import RecordPredicate

_NOT_NUMBERS = frozenset({"fetches", "sources"})
"""Tables whose digests are of stored bytes, the same on every machine."""


_RESULT_TOTALS = frozenset({"planned_bytes", "observed_bytes", "num_steps"})
"""Totals that every faithful run repeats; the others come from measured pages."""


@dataclass(frozen=True, kw_only=True, order=True)
class RecordDifference:
    """One place where two records differ; ``-`` stands for nothing."""

    path: str
    left: str
    right: str


@dataclass(frozen=True, kw_only=True)
class RecordComparison:
    """Every difference of two records, each group sorted."""

    comparable: bool
    """Whether both have the same applicability key, so that digests of numbers were compared."""
    identity: tuple[RecordDifference, ...]
    """Experiment, plan, applicability key, fixture recipe and source."""
    results: tuple[RecordDifference, ...]
    """Result digest, totals of bytes and steps, and rows of result tables."""
    telemetry: tuple[RecordDifference, ...]
    """Environment facts, the other totals, and telemetry tables, counted and not listed by row."""

    @property
    def results_agree(self) -> bool:
        """Whether no result differs and all of them could be compared."""
        return self.comparable and not self.results


def compare_records(left: LoadedRecord, right: LoadedRecord) -> RecordComparison:
    """Compare two records."""
    a, b = left.predicate, right.predicate
    comparable = a.applicability_key is not None and a.applicability_key == b.applicability_key
    results: list[RecordDifference] = []
    telemetry = list(_fields(_telemetry(a), _telemetry(b)))
    if comparable:
        results += _fields(_results(a), _results(b))
    for name, table in TABLES.items():
        rows = left.by_realization(name), right.by_realization(name)
        for number in sorted({*rows[0], *rows[1]}, key=lambda n: -1 if n is None else n):
            place = name if number is None else f"{name}/r{number}"
            pair = rows[0].get(number), rows[1].get(number)
            if table.kind == "result":
                skip_digests = not comparable and name not in _NOT_NUMBERS
                results += _table_differences(table, place, *pair, skip_digests=skip_digests)
            else:
                telemetry += _telemetry_differences(place, *pair)
    return RecordComparison(
        comparable=comparable,
        identity=tuple(sorted(_fields(_identity(a), _identity(b)))),
        results=tuple(sorted(results)),
        telemetry=tuple(sorted(telemetry)),
    )


def _identity(record: RecordPredicate) -> dict[str, Any]:
    key, fixture, plan = record.applicability_key, record.fixture, record.plan
    found: dict[str, Any] = {
        "experiment": record.experiment,
        "plan.digest": plan.digest,
        "plan.file_digest": plan.file_digest,
        "plan.model": f"{plan.model.repository}@{plan.model.revision}",
        "manifest_digest": record.manifest_digest,
        "fixture.recipe_digest": None if fixture is None else fixture.recipe_digest,
    }
    found |= {f"source.{name}": value for name, value in vars(record.source).items()}
    if key is not None:
        found |= {f"applicability_key.{name}": value for name, value in vars(key).items()}
    return found


def _results(record: RecordPredicate) -> dict[str, Any]:
    fixture = record.fixture
    return {
        "result_digest": record.result_digest,
        "fixture.digest": None if fixture is None else fixture.digest,
        **_totals(record, of_results=True),
    }


def _telemetry(record: RecordPredicate) -> dict[str, Any]:
    facts = record.environment["facts"]
    return {
        **{f"environment.facts.{name}": value for name, value in facts.items()},
        **_totals(record, of_results=False),
    }


def _totals(record: RecordPredicate, *, of_results: bool) -> dict[str, Any]:
    return {
        f"totals.{name}": value
        for name, value in record.totals.items()
        if (name in _RESULT_TOTALS) == of_results
    }


def _fields(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[RecordDifference]:
    for name in {*left, *right}:
        if left.get(name) != right.get(name):
            yield _difference(name, left.get(name), right.get(name))


def _table_differences(
    table: Table, place: str, left: Rows | None, right: Rows | None, *, skip_digests: bool
) -> Iterator[RecordDifference]:
    if left is None or right is None:
        yield _difference(place, _count(left), _count(right))
        return
    rows = _by_key(table, left), _by_key(table, right)
    for key in {*rows[0], *rows[1]}:
        a, b = rows[0].get(key), rows[1].get(key)
        where = f"{place}[{', '.join(key)}]"
        if a is None or b is None:
            yield _difference(where, None if a is None else "row", None if b is None else "row")
            continue
        for column in table.columns:
            skipped = skip_digests and column.endswith("digest")
            if a[column] != b[column] and not skipped:
                yield _difference(f"{where}.{column}", a[column], b[column])


def _telemetry_differences(
    place: str, left: Rows | None, right: Rows | None
) -> Iterator[RecordDifference]:
    if left is None or right is None or len(left) != len(right):
        yield _difference(place, _count(left), _count(right))
        return
    num_different = sum(a != b for a, b in zip(left, right, strict=True))
    if num_different:
        text = f"{num_different} of {len(left)} rows differ"
        yield RecordDifference(path=place, left=text, right=text)


def _by_key(table: Table, rows: Rows) -> dict[tuple[str, ...], dict[str, Any]]:
    # A key that repeats keeps each of its rows, numbered in order.
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    counts: dict[tuple[str, ...], int] = {}
    for row in rows:
        key = tuple(str(row[column]) for column in table.key)
        counts[key] = counts.get(key, 0) + 1
        found[key if counts[key] == 1 else (*key, f"#{counts[key]}")] = row
    return found


def _count(rows: Rows | None) -> str | None:
    return None if rows is None else f"{len(rows)} rows"


def _difference(path: str, left: Any, right: Any) -> RecordDifference:
    return RecordDifference(
        path=path,
        left="-" if left is None else str(left),
        right="-" if right is None else str(right),
    )

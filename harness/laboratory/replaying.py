"""What a replay finds: each recorded digest reproduced, not reproduced, or inapplicable.

Pure functions over the tables of two records of one plan. Digests of computed numbers speak only
under equal applicability keys; digests of stored bytes always do.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harness.evidence.declared import TABLES, Table
from harness.evidence.predicates import ApplicabilityKey

Row = Mapping[str, Any]
Tables = Mapping[tuple[str, int | None], Sequence[Row]]
"""Rows by table name and realization; a row of one stage's table says which, as ``stage``."""
REPRODUCED, NOT_REPRODUCED, INAPPLICABLE = "reproduced", "not_reproduced", "inapplicable"
OF_STORED_BYTES = frozenset({"fetches"})
NO_KEY = "applicability_key"


def differing_fields(recorded: ApplicabilityKey | None, got: ApplicabilityKey | None) -> list[str]:
    """Fields of the applicability key in which two records differ."""
    if recorded is None or got is None:
        return [NO_KEY]
    one, two = vars(recorded), vars(got)
    return sorted(name for name in {*one, *two} if one.get(name) != two.get(name))


def compared_columns(name: str) -> tuple[str, ...]:
    """Columns of a record's table that a replay compares; none where it holds no result."""
    table = TABLES[name]
    if table.kind != "result":
        return ()
    return tuple(c for c in table.columns if c.endswith("digest") or c == "token")


def replay_rows(recorded: Tables, got: Tables, fields: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each digest, and each token, that a record's result tables hold.

    Args:
        recorded: The record's tables.
        got: Those of the run that repeats it.
        fields: Fields of the applicability key that differ.
    """
    rows = []
    for (name, realization), listed in sorted(
        recorded.items(), key=lambda item: (item[0][0], -1 if item[0][1] is None else item[0][1])
    ):
        table, columns = TABLES[name], compared_columns(name)
        others = {_place(table, row): row for row in got.get((name, realization), ())}
        is_applicable = not fields or name in OF_STORED_BYTES
        for row in sorted(listed, key=lambda row: _place(table, row)):
            place = _place(table, row)
            for column in columns:
                told, found = _text(row[column]), _text(others.get(place, {}).get(column))
                outcome = REPRODUCED if place in others and told == found else NOT_REPRODUCED
                rows.append(
                    {
                        "table": name,
                        "realization": realization,
                        "place": place,
                        "column": column,
                        "recorded": told,
                        "got": found,
                        "outcome": outcome if is_applicable else INAPPLICABLE,
                    }
                )
    return rows


def replay_findings(
    rows: Sequence[Row], fields: Sequence[str], *, is_whole: bool, has_same_source: bool
) -> dict[str, Any]:
    """What follows from the rows.

    Args:
        rows: Of :func:`replay_rows`.
        fields: Fields of the applicability key that differ.
        is_whole: Whether every process of the replay ran to its end.
        has_same_source: Whether both were made by the same package files.
    """
    counts = Counter(row["outcome"] for row in rows)
    missing = [row for row in rows if row["outcome"] == NOT_REPRODUCED]
    first = None
    if missing:
        place = {name: missing[0][name] for name in ("table", "realization", "place", "column")}
        first = dict(place)
    state = _state(bool(missing), bool(fields), is_whole, has_same_source)
    return {
        "inapplicable_fields": list(fields),
        "counts": {n: counts[n] for n in (REPRODUCED, NOT_REPRODUCED, INAPPLICABLE)},
        "first_not_reproduced": first,
        "is_whole": is_whole,
        "has_same_source": has_same_source,
        "state": state,
    }


def _state(differs: bool, is_elsewhere: bool, is_whole: bool, has_same_source: bool) -> str | None:
    """The state that a replay may give its record; ``None`` when it shows nothing."""
    if not is_whole:
        return None
    if differs:
        return "degraded" if has_same_source else "stale"
    return "inapplicable" if is_elsewhere else "valid"


def _place(table: Table, row: Row) -> str:
    columns = ("stage", *table.key) if "stage" in row else table.key
    return " ".join(f"{column}={row[column]}" for column in columns)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)

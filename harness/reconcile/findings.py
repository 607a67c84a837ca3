"""Collects the differences of one check, and compares rows of tables with expected ones.

Knows how a place in a table is written; knows no table's meaning.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness.evidence.predicates import Status
from harness.reconcile.compare import render
from harness.reconcile.verdict import FAILED, NOT_EVALUATED, Difference

Row = Mapping[str, Any]
Key = tuple[Any, ...]

ABSENT = "absent"
MAX_PATH = 2000
MAX_TEXT = 2000


class Findings:
    """Differences of one check, in the order in which they were found."""

    def __init__(self, check: str) -> None:
        self.check = check
        self.differences: list[Difference] = []

    def differ(self, path: str, expected: object, got: object) -> None:
        """Add a failure at ``path``."""
        self._add(path, expected, got, FAILED)

    def not_evaluated(self, path: str, expected: object, got: object) -> None:
        """Add a place where nothing could be compared."""
        self._add(path, expected, got, NOT_EVALUATED)

    def require(self, holds: bool, path: str, expected: object, got: object) -> None:
        """Add a failure unless ``holds``."""
        if not holds:
            self.differ(path, expected, got)

    def equal(self, path: str, expected: Any, got: Any, *, origin: str = "") -> None:
        """Add a failure unless both values and their types are equal.

        Args:
            path: Where ``got`` stands.
            expected: The value that is required there.
            got: The value that is there.
            origin: Where the expected value comes from, when that is a row too.
        """
        if not same(expected, got):
            wanted = render(expected) + (f" as in {origin}" if origin else "")
            self.differ(path, wanted, render(got))

    def columns(self, path: str, expected: Row, row: Row, *, origin: str = "") -> None:
        """Compare the named columns of one row."""
        for column, value in expected.items():
            self.equal(f"{path}.{column}", value, row.get(column), origin=origin)

    def match(
        self,
        table: "KeyedRows",
        expected: Mapping[Key, Row],
        *,
        rows_noun: str = "a row",
        origin: Callable[[Key], str] = lambda key: "",
    ) -> None:
        """Compare a whole table with the expected one: missing rows, extra rows, columns.

        Args:
            table: The rows that are there.
            expected: Required columns of each row, by key.
            rows_noun: What a row of the table is, in words.
            origin: By key, the other row that an expectation comes from, in words.
        """
        for key, columns in expected.items():
            row = table.rows.get(key)
            if row is None:
                self.differ(table.path(key), rows_noun, ABSENT)
            elif not all(same(value, row.get(column)) for column, value in columns.items()):
                # Places are put into words where something is wrong only: tables are long.
                self.columns(table.path(key), columns, row, origin=origin(key))
        for key in table.rows:
            if key not in expected:
                self.differ(table.path(key), ABSENT, rows_noun)

    def _add(self, path: str, expected: object, got: object, status: Status) -> None:
        self.differences.append(
            Difference(
                check=self.check,
                path=_short(path, MAX_PATH),
                expected=_text(expected),
                got=_text(got),
                status=status,
            )
        )


def _text(value: object) -> str:
    return _short(value, MAX_TEXT) if isinstance(value, str) else render(value)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of one type (so that ``True`` is not 1)."""
    return type(one) is type(other) and bool(one == other)


class KeyedRows:
    """The rows of one table file by their key."""

    def __init__(self, where: str, key_columns: tuple[str, ...], rows: Iterable[Row]) -> None:
        self.where = where
        self.key_columns = key_columns
        self.rows: dict[Key, Row] = {}
        self.repeated: set[Key] = set()
        for row in rows:
            key = tuple(row.get(column) for column in key_columns)
            if key in self.rows:
                self.repeated.add(key)
            self.rows[key] = row

    def path(self, key: Key) -> str:
        """The place of one row, such as ``tables/steps/r0[repetition=0,phase=decode,step=3]``."""
        pairs = zip(self.key_columns, key, strict=True)
        return f"{self.where}[{','.join(f'{column}={value}' for column, value in pairs)}]"

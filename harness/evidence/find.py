"""Finding records by what they say: experiment, plan, model, verdict, date, commit.

The index proposes, the store decides: every record that is returned was read from the store, with
its verdicts and against their digests, and is left out when it does not say what was asked for.
Whether a statement keeps its rules is not asked. Knows fields and patterns, nothing of how an index
is kept.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import HarnessError, InvalidInputError
from harness.evidence.index import UNREAD, Index, read_words
from harness.evidence.listing import DISPUTED, ListedRecord, status_of
from harness.evidence.scan import one_line
from harness.evidence.store import Store

FIELDS = ("experiment", "plan", "model", "verdict", "date", "commit")
NOT_AUDITED = "none"
STATUSES = ("passed", "failed", "not_evaluated", DISPUTED, NOT_AUDITED)
_BEGINNINGS = frozenset({"plan", "date", "commit"})
"""Fields of which the first characters are enough."""
_MAX_VALUE_CHARS = 300


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One ``field=value``; ``*`` stands for any characters."""

    field: str
    value: str

    @property
    def pattern(self) -> str:
        """As a regular expression without backtracking, that finds a match anywhere in a text."""
        value = self.value
        if self.field == "plan":
            value = value if value.startswith("sha256:") else f"sha256:{value}"
        middle = ".*".join(re.escape(part) for part in value.split("*"))
        return rf"^{middle}" if self.field in _BEGINNINGS else rf"^{middle}$"

    def holds(self, text: str | None) -> bool:
        """Whether a record's field is as asked for."""
        if text is None:
            return False
        return bool(pc.match_substring_regex(pa.scalar(text), self.pattern).as_py())


@dataclass(frozen=True, kw_only=True)
class Found:
    """The newest records that were asked for."""

    records: tuple[ListedRecord, ...]
    """As the store holds them, newest first."""
    num_matching: int
    """How many the index knows; more than are returned when there is a limit."""


def parse_condition(text: str) -> Condition:
    """Parse ``field=value``.

    Raises:
        InvalidInputError: When it is not one.
    """
    field, equals, value = text.partition("=")
    if not equals or field not in FIELDS or not 0 < len(value) <= _MAX_VALUE_CHARS:
        raise InvalidInputError(
            "not a condition",
            expected=f"FIELD=VALUE, where FIELD is one of {', '.join(FIELDS)}",
            got=repr(text)[:200],
        )
    if field == "verdict" and value not in STATUSES:
        raise InvalidInputError("no such verdict", expected=", ".join(STATUSES), got=value[:200])
    return Condition(field=field, value=value)


def find_records(
    store: Store, index: Index, conditions: Sequence[Condition], *, limit: int
) -> Found:
    """The newest records that meet every condition.

    Args:
        store: The store that the index is of.
        index: What it proposes.
        conditions: All must hold; none finds every record.
        limit: Most records to read and return.
    """
    table = (
        _with_statuses(index) if any(c.field == "verdict" for c in conditions) else index.records
    )
    for condition in conditions:
        # What could not be read might be meant.
        table = table.filter(pc.or_kleene(_holding(table, condition), table.column(UNREAD)))
    order = pc.sort_indices(table, sort_keys=[("date", "descending"), ("digest", "descending")])
    records: list[ListedRecord] = []
    for digest in _texts_of(table.column("digest").take(order)):
        if len(records) == limit:
            break
        about = pc.equal(index.verdicts.column("record"), pa.scalar(digest))
        named = _texts_of(index.verdicts.filter(about).column("digest"))
        listed = _as_stored(store, digest, named, conditions)
        if listed is not None:
            records.append(listed)
    return Found(records=tuple(records), num_matching=len(table))


def _with_statuses(index: Index) -> pa.Table:
    """Records with the least and the greatest status of their verdicts, null without any."""
    bounds = index.verdicts.group_by("record").aggregate([("status", "min"), ("status", "max")])
    return index.records.join(bounds, keys="digest", right_keys="record")


def _holding(table: pa.Table, condition: Condition) -> Any:
    """Which rows are as a condition asks, as far as the index knows."""
    if condition.field != "verdict":
        return pc.match_substring_regex(table.column(condition.field), condition.pattern)
    least, greatest = table.column("status_min"), table.column("status_max")
    if condition.value == NOT_AUDITED:
        return pc.is_null(least)
    if condition.value == DISPUTED:
        return pc.not_equal(least, greatest)
    asked = pa.scalar(condition.value)
    return pc.and_(pc.equal(least, asked), pc.equal(greatest, asked))


def _texts_of(column: "pa.ChunkedArray[pa.StringScalar]") -> list[str]:
    return [text or "" for text in column.to_pylist()]


def _as_stored(
    store: Store, digest: str, named: Sequence[str], conditions: Sequence[Condition]
) -> ListedRecord | None:
    """One record as the store holds it; ``None`` when it is not what was asked for."""
    try:
        words = read_words(store, "records", digest)
        verdicts = [read_words(store, "verdicts", each) for each in named]
    except HarnessError as error:
        return ListedRecord(digest=digest, problem=one_line(error))
    statuses = [each["status"] or "" for each in verdicts if each["record"] == digest]
    status = status_of(statuses)
    texts = {**words, "verdict": status or NOT_AUDITED}
    if not all(condition.holds(texts[condition.field]) for condition in conditions):
        return None
    return ListedRecord(
        digest=digest,
        experiment=words["experiment"],
        plan_digest=words["plan"],
        status=status,
        started_at=words["date"],
        num_verdicts=len(statuses),
    )

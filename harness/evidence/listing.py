"""One line per record of a store, with the status its verdicts give it.

A damaged file is listed with its problem and hides no other. Knows statements, reads no tables.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.errors import InvalidInputError
from harness.evidence.record import VerdictLine, load_record, verdicts_by_record
from harness.evidence.scan import one_line
from harness.evidence.store import Store

DISPUTED = "disputed"


@dataclass(frozen=True, kw_only=True)
class ListedRecord:
    """One record in a listing; fields are ``None`` when it cannot be read."""

    digest: str
    experiment: str | None = None
    plan_digest: str | None = None
    status: str | None = None
    """Of its verdicts; ``disputed`` when they contradict each other, ``None`` without any."""
    started_at: str | None = None
    num_verdicts: int = 0
    problem: str | None = None
    """Why it cannot be read."""


def list_records(store: Store) -> list[ListedRecord]:
    """Every record of a store, newest first."""
    verdicts = verdicts_by_record(store)
    listed = [
        _listed(store, digest, verdicts.get(digest, [])) for digest in store.digests("records")
    ]
    return sorted(listed, key=lambda row: (row.started_at or "", row.digest), reverse=True)


def _listed(store: Store, digest: str, verdicts: list[VerdictLine]) -> ListedRecord:
    try:
        record = load_record(digest, store).predicate
    except InvalidInputError as error:
        return ListedRecord(digest=digest, problem=one_line(error))
    return ListedRecord(
        digest=digest,
        experiment=record.experiment,
        plan_digest=record.plan.digest,
        status=status_of(verdict.status for verdict in verdicts),
        started_at=record.started_at,
        num_verdicts=len(verdicts),
    )


def status_of(statuses: Iterable[str]) -> str | None:
    """What the statuses of a record's verdicts say together; ``None`` without any."""
    distinct = set(statuses)
    return DISPUTED if len(distinct) > 1 else next(iter(distinct), None)

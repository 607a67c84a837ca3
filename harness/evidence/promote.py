"""Copying one record, with everything it names and its verdicts, into another store.

What is promoted is meant to be public, so text that names a person, a machine or a secret is
refused. Knows stores, nothing of what a record means.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import EvidenceError
from harness.evidence.record import LoadedRecord, LoadedVerdict, verdicts_of
from harness.evidence.redact import Identity, local_identity, redact_text
from harness.evidence.store import Store
from harness.evidence.tables import WrittenTable, table_place

_MAX_LISTED = 20
Approve = Callable[[Sequence[LoadedVerdict]], None]


@dataclass(frozen=True, kw_only=True)
class Promotion:
    """What was copied, or was there already."""

    record_digest: str
    verdict_digests: tuple[str, ...]
    table_digests: tuple[str, ...]


def promote(
    record: LoadedRecord,
    target: Store,
    *,
    identity: Identity | None = None,
    approve: Approve | None = None,
) -> Promotion:
    """Copy a record into ``target`` and its log; doing it again changes nothing.

    Everything is read and verified before the first byte is written, and each statement becomes
    visible after what it names.

    Args:
        record: The record, with the store it was loaded from.
        target: The store to copy into.
        identity: Whose names must not appear; by default those of this process.
        approve: Called with the verdicts after all was read and before the first byte is written;
            raises to refuse.

    Raises:
        EvidenceError: When anything named is missing or damaged, or would make private text public.
    """
    verdicts = public_verdicts(record, identity or local_identity())
    if approve is not None:
        approve(verdicts)
    return copy_record(record, verdicts, target)


def public_verdicts(record: LoadedRecord, identity: Identity) -> list[LoadedVerdict]:
    """Read and verify a record with all it names; returns its verdicts.

    Raises:
        EvidenceError: When anything named is missing or damaged, or holds private text.
    """
    verdicts = verdicts_of(record.store, record.digest)
    where = record.store.path("records", record.digest)
    refuse_private(_private_places(record, verdicts, identity), "record", where)
    return verdicts


def refuse_private(places: Iterable[str], what: str, where: Path) -> None:
    """Refuse what must not become public, naming its places.

    Raises:
        EvidenceError: When there is any.
    """
    private = sorted(places)
    if private:
        rest = f", and {len(private) - _MAX_LISTED} more" if len(private) > _MAX_LISTED else ""
        raise EvidenceError(
            f"the {what} holds text that must not become public",
            expected="no home paths, user names, host names, addresses or tokens",
            got="; ".join(private[:_MAX_LISTED]) + rest,
            where=str(where),
            hint="redact it where it is recorded, and run again",
        )


def copy_record(
    record: LoadedRecord, verdicts: Sequence[LoadedVerdict], target: Store
) -> Promotion:
    """Copy a record that was read and verified, and these verdicts, into ``target`` and its log."""
    source = record.store
    tables = [*record.predicate.tables, *(v.predicate.differences.table() for v in verdicts)]
    manifest = record.manifest_bytes()
    target.start_log()
    for table in tables:
        target.put_table(source.read("tables", table.digest))
    target.put_plan(record.plan_bytes())
    if manifest is not None:
        target.put_manifest(manifest)
    target.put_record(record.statement)
    for verdict in verdicts:
        target.put_verdict(verdict.statement)
    return Promotion(
        record_digest=record.digest,
        verdict_digests=tuple(sorted(verdict.digest for verdict in verdicts)),
        table_digests=tuple(sorted({table.digest for table in tables})),
    )


def _private_places(
    record: LoadedRecord, verdicts: list[LoadedVerdict], identity: Identity
) -> Iterator[str]:
    """Places of private text; reads, and so verifies, everything that would be copied."""
    yield from search(record.statement, "record", identity)
    yield from search_json(record.plan_bytes(), "plan", identity)
    for number, line in enumerate((record.manifest_bytes() or b"").splitlines(), start=1):
        yield from search_json(line, f"manifest line {number}", identity)
    for verdict in verdicts:
        yield from search(verdict.statement, f"verdict {verdict.digest[7:15]}", identity)
        yield from search(verdict.differences(), "table differences", identity)
    for table in record.predicate.tables:
        yield from search(record.store.read_table_rows(table), label(table), identity)


def search_json(data: bytes, place: str, identity: Identity) -> Iterator[str]:
    """Places of private text in a JSON document, also in one that cannot be parsed."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = data.decode("utf-8", "replace")  # what cannot be parsed is searched as it is
    yield from search(document, place, identity)


def label(table: WrittenTable) -> str:
    """A table's name, with its realization and stage."""
    return f"table {table_place(table.name, table.realization, table.stage)}"


def search(value: Any, place: str, identity: Identity) -> Iterator[str]:
    """Places of private text in JSON values."""
    if isinstance(value, str):
        if redact_text(value, identity) != value:
            yield place
    elif isinstance(value, Mapping):
        for index, (name, item) in enumerate(value.items()):
            if redact_text(name, identity) == name:
                yield from search(item, f"{place}.{name}", identity)
            else:
                yield f"{place} (the name of field {index})"
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from search(item, f"{place}[{index}]", identity)

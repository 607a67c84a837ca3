"""Loaded records and verdicts: a checked statement together with the store that holds its rows.

Everything read through these is verified against its digest. Knows how to reach rows, nothing of
what they mean.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from harness.canonical import is_digest
from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.statement import (
    RecordPredicate,
    VerdictPredicate,
    record_predicate,
    verdict_predicate,
)
from harness.evidence.store import SUFFIXES, Kind, Store
from harness.evidence.tables import WrittenTable, table_place

Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class LoadedRecord:
    """One record, read and checked; rows are read when asked for."""

    digest: str
    """The record digest: SHA-256 of the statement's bytes."""
    statement: Mapping[str, Any]
    predicate: RecordPredicate
    store: Store

    @property
    def realizations(self) -> tuple[int, ...]:
        """Numbers of the fresh realizations that wrote tables, sorted."""
        numbers = {table.realization for table in self.predicate.tables}
        return tuple(sorted(number for number in numbers if number is not None))

    def table(
        self, name: str, realization: int | None = None, stage: int | None = None
    ) -> WrittenTable | None:
        """The reference to one table, or ``None`` when the record does not name it."""
        for table in self.predicate.tables:
            if (table.name, table.realization, table.stage) == (name, realization, stage):
                return table
        return None

    def rows(self, name: str, realization: int | None = None, stage: int | None = None) -> Rows:
        """Rows of one table.

        Args:
            name: The table's name.
            realization: Which realization's table; ``None`` is the table of the whole record.
            stage: Which stage's; ``None`` where there are none, or the table is of them all.

        Raises:
            EvidenceError: When the record does not name it, or its file is damaged.
        """
        table = self.table(name, realization, stage)
        if table is None:
            raise EvidenceError(
                "the record has no such table",
                expected=", ".join(sorted({table.name for table in self.predicate.tables})),
                got=table_place(name, realization, stage),
                where=str(self.store.path("records", self.digest)),
            )
        return self.store.read_table_rows(table)

    def by_realization(self, name: str) -> dict[int | None, Rows]:
        """Rows of every table of that name, stage after stage; empty when there is none."""
        found: dict[int | None, Rows] = {}
        for table in self.predicate.tables:
            if table.name == name:
                found.setdefault(table.realization, []).extend(self.store.read_table_rows(table))
        return found

    def by_stage(self, name: str) -> dict[tuple[int | None, int | None], Rows]:
        """Rows of every table of that name, by realization and stage."""
        return {
            (table.realization, table.stage): self.store.read_table_rows(table)
            for table in self.predicate.tables
            if table.name == name
        }

    def plan_bytes(self) -> bytes:
        """Bytes of the plan file the record is about."""
        return self.store.read("plans", self.predicate.plan.file_digest)

    def manifest_bytes(self) -> bytes | None:
        """Bytes of the tensor manifest, or ``None`` when the record names none."""
        digest = self.predicate.manifest_digest
        return None if digest is None else self.store.read("manifests", digest)


@dataclass(frozen=True, kw_only=True)
class RememberingRecord(LoadedRecord):
    """A record that reads each file once: faithful realizations write many tables alike."""

    remembered: dict[WrittenTable, Rows] = field(default_factory=dict, repr=False, compare=False)
    """Rows by all that the record says of their file but for whose they are."""

    def rows(self, name: str, realization: int | None = None, stage: int | None = None) -> Rows:
        """Rows of one table (see :meth:`LoadedRecord.rows`), which nobody may change."""
        table = self.table(name, realization, stage)
        content = None if table is None else replace(table, realization=None, stage=None)
        if content is None or content not in self.remembered:
            rows = super().rows(name, realization, stage)
            if content is None:
                return rows
            self.remembered[content] = rows
        return self.remembered[content]


@dataclass(frozen=True, kw_only=True)
class LoadedVerdict:
    """One verdict, read and checked."""

    digest: str
    statement: Mapping[str, Any]
    predicate: VerdictPredicate
    store: Store

    def differences(self) -> Rows:
        """Rows of the verdict's table ``differences``."""
        return self.store.read_table_rows(self.predicate.differences.table())


def load_record(reference: str | Path, store: Store | None = None) -> LoadedRecord:
    """Load one record.

    Args:
        reference: The path of a record file inside its store, a digest, or the first hexadecimal
            digits of one.
        store: Where a digest is looked up; not needed for a path.

    Raises:
        EvidenceError: When there is no such record, or it is not valid.
    """
    store, digest = locate(reference, store, "records")
    statement = store.read_record(digest)
    return LoadedRecord(
        digest=digest, statement=statement, predicate=record_predicate(statement), store=store
    )


def load_verdict(reference: str | Path, store: Store | None = None) -> LoadedVerdict:
    """Load one verdict (see :func:`load_record`)."""
    store, digest = locate(reference, store, "verdicts")
    statement = store.read_verdict(digest)
    return LoadedVerdict(
        digest=digest, statement=statement, predicate=verdict_predicate(statement), store=store
    )


def verdicts_of(store: Store, record_digest: str) -> list[LoadedVerdict]:
    """Every verdict of one record, oldest first (see :func:`verdict_age`).

    Raises:
        EvidenceError: When any verdict of the store is damaged, since it could be one of them.
    """
    verdicts = [load_verdict(digest, store) for digest in store.digests("verdicts")]
    found = [v for v in verdicts if v.predicate.record_digest == record_digest]
    return sorted(found, key=verdict_age)


class VerdictLine(NamedTuple):
    """What a listing keeps of a verdict: there may be very many."""

    digest: str
    status: str


def verdicts_by_record(store: Store) -> dict[str, list[VerdictLine]]:
    """Readable verdicts by record digest, oldest first; verification reports the others."""
    found: dict[str, list[tuple[tuple[tuple[int, ...], int, str], VerdictLine]]] = {}
    for digest in store.digests("verdicts"):
        try:
            verdict = load_verdict(digest, store)
        except InvalidInputError:
            continue
        line = VerdictLine(digest, sys.intern(verdict.predicate.status))
        found.setdefault(verdict.predicate.record_digest, []).append((verdict_age(verdict), line))
    return {record: [line for _, line in sorted(listed)] for record, listed in found.items()}


def verdict_age(verdict: LoadedVerdict) -> tuple[tuple[int, ...], int, str]:
    """Sort key, oldest first: the auditor's version, then when the file was written.

    A verdict holds no time, so that an equal audit is the same file; a copied or checked out store
    has new file times, and there the version decides first.
    """
    version = verdict.predicate.auditor.version.split(".")
    numbers = tuple(int(part) for part in version if part.isascii() and part.isdigit())
    written = verdict.store.path("verdicts", verdict.digest).lstat().st_mtime_ns
    return numbers, written, verdict.digest


def locate(reference: str | Path, store: Store | None, kind: Kind) -> tuple[Store, str]:
    """The store and whole digest that a path, digest or prefix of one means."""
    path = Path(reference)
    suffix = SUFFIXES[kind]
    if isinstance(reference, Path) or len(path.parts) > 1 or path.suffix == suffix:
        path = Path(os.path.abspath(path))
        digest = f"sha256:{path.name.removesuffix(suffix)}"
        if path.suffix != suffix or path.parent.name != kind or not is_digest(digest):
            raise EvidenceError(
                f"not one of the {kind} of a store",
                expected=f"<store>/{kind}/<64 hex digits>{suffix}",
                got=str(reference),
                hint="a store's files keep the names they were written under",
            )
        return Store(path.parent.parent), digest
    if store is None:
        raise EvidenceError("a digest needs a store to be looked up in", got=str(reference))
    return store, store.resolve(str(reference), kind)

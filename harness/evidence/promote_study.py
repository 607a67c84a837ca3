"""Copying studies, with the records, tables and tensors that they rest on, into another store.

A study may name other studies in its parameters; these are copied before it. The rules are those of
a record: everything is read and verified first, and private text is refused. Knows stores, nothing
of what a study means.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.canonical import is_digest
from harness.evidence.promote import (
    Promotion,
    copy_record,
    label,
    public_verdicts,
    refuse_private,
    search,
    search_json,
)
from harness.evidence.record import LoadedRecord, LoadedVerdict, load_record
from harness.evidence.redact import Identity, local_identity
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate, study_predicate

Approve = Callable[[StudyPredicate], None]
ApproveRecord = Callable[[LoadedRecord, Sequence[LoadedVerdict]], None]
_LENGTH_BYTES = 8
"""A safetensors file starts with the length of its header."""


@dataclass(frozen=True, kw_only=True)
class StudyPromotion:
    """What was copied, or was there already."""

    study_digests: tuple[str, ...]
    """Each after those that it names."""
    records: tuple[Promotion, ...]
    table_digests: tuple[str, ...]
    tensors_digests: tuple[str, ...]


def lineage(store: Store, digest: str) -> list[str]:
    """A study and every study of the store that it names, and they name: each after what it names.

    Raises:
        EvidenceError: When one of them is damaged.
    """
    found: list[str] = []
    waiting = [(digest, False)]
    while waiting:
        each, are_named_found = waiting.pop()
        if each in found:
            continue
        if are_named_found:
            found.append(each)
            continue
        named = _digests(study_predicate(store.read_study(each)).parameters)
        waiting.append((each, True))
        waiting += [(one, False) for one in named if store.has("studies", one)]
    return found


def promote_studies(
    source: Store,
    digests: Sequence[str],
    target: Store,
    *,
    identity: Identity | None = None,
    approve: Approve | None = None,
    approve_record: ApproveRecord | None = None,
) -> StudyPromotion:
    """Copy studies into ``target`` and its log; doing it again changes nothing.

    Args:
        source: The store that holds them.
        digests: Of the studies, each after those that it names (see :func:`lineage`).
        target: The store to copy into.
        identity: Whose names must not appear; by default those of this process.
        approve: Called with each study before the first byte is written; raises to refuse.
        approve_record: Called in the same way with each record and its verdicts.

    Raises:
        EvidenceError: When anything named is missing or damaged, or would make private text public.
    """
    who = identity or local_identity()
    studies = {digest: study_predicate(source.read_study(digest)) for digest in digests}
    names = dict.fromkeys(name for study in studies.values() for name in study.records)
    records = {name: load_record(name, source) for name in names}
    verdicts = {name: public_verdicts(record, who) for name, record in records.items()}
    for digest, study in studies.items():
        where = source.path("studies", digest)
        refuse_private(_private_places(source, digest, study, who), "study", where)
    if approve_record is not None:
        for name, record in records.items():
            approve_record(record, verdicts[name])
    if approve is not None:
        for study in studies.values():
            approve(study)
    target.start_log()
    copied = [copy_record(record, verdicts[name], target) for name, record in records.items()]
    tables = sorted({table.digest for study in studies.values() for table in study.tables})
    tensors = sorted({file.digest for study in studies.values() for file in study.tensors})
    for table in tables:
        target.put_table(source.read("tables", table))
    for file in tensors:
        target.put("tensors", source.read("tensors", file))
    for digest in digests:
        target.put_study(source.read_study(digest))
    return StudyPromotion(
        study_digests=tuple(digests),
        records=tuple(copied),
        table_digests=tuple(tables),
        tensors_digests=tuple(tensors),
    )


def _private_places(
    source: Store, digest: str, study: StudyPredicate, identity: Identity
) -> Iterator[str]:
    yield from search(source.read_study(digest), "study", identity)
    for table in study.tables:
        written = table.written()
        yield from search(source.read_table_rows(written), label(written), identity)
    for file in study.tensors:
        data = source.read("tensors", file.digest)
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        header = data[_LENGTH_BYTES : _LENGTH_BYTES + length]
        yield from search_json(header, f"tensors {file.digest[7:15]}", identity)


def _digests(value: Any) -> Iterator[str]:
    """Every digest that stands in JSON values."""
    if isinstance(value, str) and is_digest(value) and value.startswith("sha256:"):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _digests(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _digests(item)

"""Integrity of a store: every file has its name's digest, every reference holds, nothing is extra.

Statements are checked against their schemas and against what they refer to, the log and the
signatures where there are any. Whether a record *passes* is the auditor's question, not asked here.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.canonical import bare_hex, is_digest, parse_json
from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.damage import describe_damage
from harness.evidence.log.check import check_log
from harness.evidence.log.shard import LOG_FOLDER
from harness.evidence.plans_folder import verify_plans
from harness.evidence.references import STATEMENT_TYPES, Reference, parse_kind, references_of
from harness.evidence.scan import FoundFile, Problem, hash_all, one_line, problem, scan
from harness.evidence.signing.envelope import MAX_ENVELOPE_BYTES
from harness.evidence.signing.keys import AllowedKeys
from harness.evidence.signing.verify import check_signatures
from harness.evidence.statement import (
    RecordPredicate,
    VerdictPredicate,
    record_predicate,
    verdict_predicate,
)
from harness.evidence.store import MAX_FILE_BYTES, SIGNATURE_FOLDER, SUFFIXES, Kind, Store
from harness.evidence.tables import inspect

__all__ = ["Problem", "verify_store"]


@dataclass(kw_only=True)
class _Stock:
    """What a store was found to hold."""

    store: Store
    sound: dict[tuple[Kind, str], FoundFile] = field(default_factory=dict)
    """Files whose bytes have the digest of their name."""
    damaged: dict[tuple[Kind, str], FoundFile] = field(default_factory=dict)
    """Files named by a digest that their bytes do not have."""
    strays: list[tuple[Kind, FoundFile]] = field(default_factory=list)
    """Files not named by a digest."""
    signatures: list[FoundFile] = field(default_factory=list)
    records: dict[str, RecordPredicate] = field(default_factory=dict)
    verdicts: dict[str, VerdictPredicate] = field(default_factory=dict)
    references: list[Reference] = field(default_factory=list)
    """From valid statements under their own names."""
    named: set[tuple[Kind, str]] = field(default_factory=set)
    """Files that any readable statement names, also a renamed one."""


def verify_store(
    root: Path, *, plans: Path | None = None, keys: AllowedKeys | None = None
) -> list[Problem]:
    """List every integrity problem of a store, sorted by path.

    Args:
        root: The store's folder.
        plans: Also verify this folder of frozen plans, their sidecars and manifests.
        keys: Whose signatures every record must carry; ``None`` asks for none.

    Raises:
        EvidenceError: When a folder does not exist.
    """
    if not root.is_dir():
        raise EvidenceError("no evidence store here", expected="a folder", where=str(root))
    problems: list[Problem] = []
    stock = _take_stock(root, problems)
    _read_statements(stock, problems)
    _report_damage(stock, problems)
    _report_missing(stock, problems)
    _report_unnamed(stock, problems)
    _check_tables(stock, problems)
    _check_plans(stock, problems)
    _check_verdicts(stock, problems)
    problems += check_signatures(stock.signatures, _record_paths(stock), keys)
    if (root / LOG_FOLDER).is_dir() and not (root / LOG_FOLDER).is_symlink():
        problems += check_log(root, _by_name(stock), {each.path for each in problems})
    if plans is not None:
        problems.extend(verify_plans(plans))
    return sorted(set(problems))


def _take_stock(root: Path, problems: list[Problem]) -> _Stock:
    stock = _Stock(store=Store(root))
    folders = (*SUFFIXES, SIGNATURE_FOLDER, LOG_FOLDER)
    for path, _ in scan(root, problems, max_bytes=1 << 62, subfolders=folders):
        problems.append(problem(path, "extra", f"does not belong into {root.name}"))
    listed: dict[Path, Kind] = {}
    entries = []
    for kind in SUFFIXES:
        folder = root / kind
        # A link in a folder's place was reported with the root's entries.
        if folder.is_dir() and not folder.is_symlink():
            found = scan(folder, problems, max_bytes=MAX_FILE_BYTES[kind])
            listed |= {path: kind for path, _ in found}
            entries += found
    for file in hash_all(entries, problems):
        kind = listed[file.path]
        digest = _digest_of_name(file.path, kind)
        if digest is None:
            stock.strays.append((kind, file))
        elif digest == file.digest:
            stock.sound[kind, digest] = file
        else:
            stock.damaged[kind, digest] = file
    signatures = root / SIGNATURE_FOLDER
    if signatures.is_dir() and not signatures.is_symlink():
        found = scan(signatures, problems, max_bytes=MAX_ENVELOPE_BYTES)
        stock.signatures = hash_all(found, problems)
    return stock


def _record_paths(stock: _Stock) -> dict[str, Path]:
    return {bare_hex(d): stock.sound["records", d].path for d in stock.records}


def _by_name(stock: _Stock) -> dict[str, FoundFile]:
    """Files under their own names, by name inside the store; damaged ones are reported already."""
    files = {f"{kind}/{file.path.name}": file for (kind, _), file in stock.sound.items()}
    signatures = {f"{SIGNATURE_FOLDER}/{file.path.name}": file for file in stock.signatures}
    return files | signatures


def _digest_of_name(path: Path, kind: Kind) -> str | None:
    digest = f"sha256:{path.name.removesuffix(SUFFIXES[kind])}"
    return digest if path.name.endswith(SUFFIXES[kind]) and is_digest(digest) else None


def _read_statements(stock: _Stock, problems: list[Problem]) -> None:
    for (kind, digest), file in stock.sound.items():
        if kind not in STATEMENT_TYPES:
            continue
        try:
            statement = parse_kind(kind, file.path)
        except InvalidInputError as error:
            problems.append(problem(file.path, "invalid", one_line(error)))
            continue
        if kind == "records":
            stock.records[digest] = record_predicate(statement)
        elif kind == "verdicts":
            stock.verdicts[digest] = verdict_predicate(statement)
        stock.references.extend(references_of(statement, file.path))
    stock.named.update((reference.kind, reference.digest) for reference in stock.references)
    for kind, file in _unsound(stock):
        if kind in STATEMENT_TYPES:
            try:
                references = references_of(parse_kind(kind, file.path), file.path)
            except InvalidInputError:
                continue
            stock.named.update((reference.kind, reference.digest) for reference in references)


def _unsound(stock: _Stock) -> Iterator[tuple[Kind, FoundFile]]:
    yield from ((kind, file) for (kind, _), file in stock.damaged.items())
    yield from stock.strays


def _report_damage(stock: _Stock, problems: list[Problem]) -> None:
    sizes = {
        (reference.kind, reference.digest): reference.table.size_bytes
        for reference in stock.references
        if reference.table is not None
    }
    for key, file in stock.damaged.items():
        if _was_renamed(stock, key[0], file):
            problems.append(_renamed(stock, key[0], file))
            continue
        kind, text = describe_damage(
            file.path, key[1], size_bytes=file.size_bytes, declared_bytes=sizes.get(key)
        )
        problems.append(problem(file.path, kind, text))
    for kind, file in stock.strays:
        if _was_renamed(stock, kind, file):
            problems.append(_renamed(stock, kind, file))
        else:
            text = f"is not named by a digest, expected <64 hex digits>{SUFFIXES[kind]}"
            problems.append(problem(file.path, "extra", text))


def _was_renamed(stock: _Stock, kind: Kind, file: FoundFile) -> bool:
    """Whether the bytes belong under another name, where they are not now."""
    key = (kind, file.digest)
    return key not in stock.sound and (key in stock.named or key in stock.damaged)


def _renamed(stock: _Stock, kind: Kind, file: FoundFile) -> Problem:
    name = stock.store.path(kind, file.digest).name
    return problem(file.path, "renamed", f"holds the bytes of {name}; give it that name again")


def _report_missing(stock: _Stock, problems: list[Problem]) -> None:
    elsewhere = {(kind, file.digest) for kind, file in _unsound(stock)}
    missing: dict[tuple[Kind, str], list[str]] = defaultdict(list)
    for reference in stock.references:
        key = (reference.kind, reference.digest)
        if key not in stock.sound and key not in stock.damaged and key not in elsewhere:
            missing[key].append(f"{reference.label} of {reference.referrer.name}")
    for (kind, digest), referrers in missing.items():
        text = f"is missing: {sorted(referrers)[0]}"
        if len(referrers) > 1:
            text += f", and {len(referrers) - 1} more"
        problems.append(problem(stock.store.path(kind, digest), "missing", text))


def _report_unnamed(stock: _Stock, problems: list[Problem]) -> None:
    for key, file in stock.sound.items():
        if key[0] not in STATEMENT_TYPES and key not in stock.named:
            text = "no statement that can be read names it"
            problems.append(problem(file.path, "extra", text))


def _check_tables(stock: _Stock, problems: list[Problem]) -> None:
    # Many statements may name one table, which is looked into once for each name it goes by.
    inspected: dict[tuple[str, str], int | None] = {}
    for reference in stock.references:
        file = stock.sound.get((reference.kind, reference.digest))
        table = reference.table
        if file is None or table is None:
            continue
        key = (reference.digest, table.name)
        if key not in inspected:
            inspected[key] = _num_rows(table.name, file, problems)
        num_rows = inspected[key]
        if num_rows is None:
            continue
        for what, said, found in (
            ("rows", table.num_rows, num_rows),
            ("bytes", table.size_bytes, file.size_bytes),
        ):
            if said != found:
                text = f"gives {reference.label} {said} {what}, the file has {found}"
                problems.append(problem(reference.referrer, "broken_reference", text))


def _num_rows(name: str, file: FoundFile, problems: list[Problem]) -> int | None:
    try:
        return inspect(name, file.path.read_bytes(), where=str(file.path))
    except EvidenceError as error:
        problems.append(problem(file.path, "invalid", one_line(error)))
        return None


def _check_plans(stock: _Stock, problems: list[Problem]) -> None:
    plans: dict[str, Any] = {}
    for digest, record in stock.records.items():
        file = stock.sound.get(("plans", record.plan.file_digest))
        if file is None:
            continue
        if file.digest not in plans:
            try:
                plans[file.digest] = parse_json(file.path.read_bytes(), where=str(file.path))
            except InvalidInputError as error:
                problems.append(problem(file.path, "invalid", one_line(error)))
                plans[file.digest] = None
        plan = plans[file.digest]
        said = record.plan
        where = stock.store.path("records", digest)
        for place, expected in (
            (("digest",), said.digest),
            (("schema",), said.schema),
            (("plan_version",), said.plan_version),
            (("model", "repository"), said.model.repository),
            (("model", "revision"), said.model.revision),
            (("checkpoint", "manifest", "digest"), record.manifest_digest),
        ):
            got = _at(plan, place)
            if plan is not None and got != expected:
                text = f"says plan {'.'.join(place)} is {expected!r}, the plan says {got!r}"
                problems.append(problem(where, "broken_reference", text))


def _check_verdicts(stock: _Stock, problems: list[Problem]) -> None:
    for digest, verdict in stock.verdicts.items():
        record = stock.records.get(verdict.record_digest)
        if record is not None and record.plan.digest != verdict.plan_digest:
            text = f"names plan {verdict.plan_digest}, its record names {record.plan.digest}"
            where = stock.store.path("verdicts", digest)
            problems.append(problem(where, "broken_reference", text))


def _at(document: Any, place: tuple[str, ...]) -> Any:
    for name in place:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document

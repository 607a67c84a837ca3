"""Integrity of a store: every file has its name's digest, every reference holds, nothing is extra.

Statements are checked against their schemas and against what they refer to, the log and the
signatures where there are any. Whether a record *passes* is the auditor's question, not asked here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

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
    record_predicate,
    verdict_predicate,
)
from harness.evidence.store import MAX_FILE_BYTES, SIGNATURE_FOLDER, SUFFIXES, Kind, Store
from harness.evidence.tables import inspect

__all__ = ["Problem", "verify_store"]


class _PlanWords(NamedTuple):
    """What a record says of its plan; equal words are kept once."""

    file_digest: str
    said: tuple[tuple[tuple[str, ...], str | None], ...]
    """Places in a plan, and what the record says stands there."""


@dataclass(kw_only=True, slots=True)
class _Missing:
    """A file that is not here; statements that name it."""

    first: str
    num_referrers: int = 1


@dataclass(kw_only=True)
class _Stock:
    """What a store was found to hold; no statement is kept, since there may be very many."""

    store: Store
    sound: dict[tuple[Kind, str], FoundFile] = field(default_factory=dict)
    """Files whose bytes have the digest of their name."""
    damaged: dict[tuple[Kind, str], FoundFile] = field(default_factory=dict)
    """Files named by a digest that their bytes do not have."""
    strays: list[tuple[Kind, FoundFile]] = field(default_factory=list)
    """Files not named by a digest."""
    elsewhere: set[tuple[Kind, str]] = field(default_factory=set)
    """Files whose bytes are here under another name."""
    signatures: list[FoundFile] = field(default_factory=list)
    records: dict[str, _PlanWords] = field(default_factory=dict)
    """What each record says of its plan."""
    verdicts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Digests of the record and of the plan that each verdict names."""
    named: set[tuple[Kind, str]] = field(default_factory=set)
    """Files that any readable statement names, also a renamed one."""
    missing: dict[tuple[Kind, str], _Missing] = field(default_factory=dict)
    declared_bytes: dict[tuple[Kind, str], int] = field(default_factory=dict)
    """Sizes that statements give to damaged files."""
    num_rows: dict[tuple[str, str], int | None] = field(default_factory=dict)
    """Rows of each table by its digest and the name it goes by, which is looked into once."""


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
    for entry in scan(root, problems, max_bytes=1 << 62, subfolders=folders):
        problems.append(problem(entry.path, "extra", f"does not belong into {root.name}"))
    for kind in SUFFIXES:
        folder = root / kind
        # A link in a folder's place was reported with the root's entries.
        if folder.is_dir() and not folder.is_symlink():
            found = scan(folder, problems, max_bytes=MAX_FILE_BYTES[kind])
            for file in hash_all(found, problems):
                _take(stock, kind, file)
    signatures = root / SIGNATURE_FOLDER
    if signatures.is_dir() and not signatures.is_symlink():
        found = scan(signatures, problems, max_bytes=MAX_ENVELOPE_BYTES)
        stock.signatures = hash_all(found, problems)
    stock.elsewhere.update((kind, file.digest) for kind, file in _unsound(stock))
    return stock


def _take(stock: _Stock, kind: Kind, file: FoundFile) -> None:
    suffix = SUFFIXES[kind]
    digest = f"sha256:{file.name.removesuffix(suffix)}"
    if not file.name.endswith(suffix) or not is_digest(digest):
        stock.strays.append((kind, file))
    elif digest == file.digest:
        stock.sound[kind, digest] = file
    else:
        stock.damaged[kind, digest] = file


def _record_paths(stock: _Stock) -> dict[str, Path]:
    return {bare_hex(d): stock.sound["records", d].path for d in stock.records}


def _by_name(stock: _Stock) -> dict[str, FoundFile]:
    """Files under their own names, by name inside the store; damaged ones are reported already."""
    files = {f"{kind}/{file.name}": file for (kind, _), file in stock.sound.items()}
    signatures = {f"{SIGNATURE_FOLDER}/{file.name}": file for file in stock.signatures}
    return files | signatures


def _read_statements(stock: _Stock, problems: list[Problem]) -> None:
    words: dict[_PlanWords, _PlanWords] = {}
    for (kind, digest), file in stock.sound.items():
        if kind not in STATEMENT_TYPES:
            continue
        try:
            statement = parse_kind(kind, file.path)
        except InvalidInputError as error:
            problems.append(problem(file.path, "invalid", one_line(error)))
            continue
        if kind == "records":
            said = _plan_words(record_predicate(statement))
            stock.records[digest] = words.setdefault(said, said)
        elif kind == "verdicts":
            verdict = verdict_predicate(statement)
            stock.verdicts[digest] = (verdict.record_digest, verdict.plan_digest)
        for reference in references_of(statement, file.path):
            _follow(stock, reference, problems)
    for kind, file in _unsound(stock):
        if kind in STATEMENT_TYPES:
            try:
                references = references_of(parse_kind(kind, file.path), file.path)
            except InvalidInputError:
                continue
            stock.named.update((reference.kind, reference.digest) for reference in references)


def _plan_words(record: RecordPredicate) -> _PlanWords:
    plan = record.plan
    return _PlanWords(
        plan.file_digest,
        (
            (("digest",), plan.digest),
            (("schema",), plan.schema),
            (("plan_version",), plan.plan_version),
            (("model", "repository"), plan.model.repository),
            (("model", "revision"), plan.model.revision),
            (("checkpoint", "manifest", "digest"), record.manifest_digest),
        ),
    )


def _follow(stock: _Stock, reference: Reference, problems: list[Problem]) -> None:
    """Compare one reference of a sound statement with what is here."""
    key = (reference.kind, reference.digest)
    stock.named.add(key)
    file, table = stock.sound.get(key), reference.table
    if file is None:
        if table is not None and key in stock.damaged:
            stock.declared_bytes[key] = table.size_bytes
        elif key not in stock.damaged and key not in stock.elsewhere:
            _miss(stock, key, f"{reference.label} of {reference.referrer.name}")
        return
    if table is None:
        return
    looked_up = (reference.digest, table.name)
    if looked_up not in stock.num_rows:
        stock.num_rows[looked_up] = _num_rows(table.name, file, problems)
    num_rows = stock.num_rows[looked_up]
    if num_rows is None:
        return
    for what, said, found in (
        ("rows", table.num_rows, num_rows),
        ("bytes", table.size_bytes, file.size_bytes),
    ):
        if said != found:
            text = f"gives {reference.label} {said} {what}, the file has {found}"
            problems.append(problem(reference.referrer, "broken_reference", text))


def _miss(stock: _Stock, key: tuple[Kind, str], text: str) -> None:
    known = stock.missing.get(key)
    if known is None:
        stock.missing[key] = _Missing(first=text)
    else:
        known.first = min(known.first, text)
        known.num_referrers += 1


def _unsound(stock: _Stock) -> Iterator[tuple[Kind, FoundFile]]:
    yield from ((kind, file) for (kind, _), file in stock.damaged.items())
    yield from stock.strays


def _report_damage(stock: _Stock, problems: list[Problem]) -> None:
    for key, file in stock.damaged.items():
        if _was_renamed(stock, key[0], file):
            problems.append(_renamed(stock, key[0], file))
            continue
        kind, text = describe_damage(
            file.path,
            key[1],
            size_bytes=file.size_bytes,
            declared_bytes=stock.declared_bytes.get(key),
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
    for (kind, digest), missing in stock.missing.items():
        text = f"is missing: {missing.first}"
        if missing.num_referrers > 1:
            text += f", and {missing.num_referrers - 1} more"
        problems.append(problem(stock.store.path(kind, digest), "missing", text))


def _report_unnamed(stock: _Stock, problems: list[Problem]) -> None:
    for key, file in stock.sound.items():
        if key[0] not in STATEMENT_TYPES and key not in stock.named:
            text = "no statement that can be read names it"
            problems.append(problem(file.path, "extra", text))


def _num_rows(name: str, file: FoundFile, problems: list[Problem]) -> int | None:
    try:
        return inspect(name, file.path.read_bytes(), where=str(file.path))
    except EvidenceError as error:
        problems.append(problem(file.path, "invalid", one_line(error)))
        return None


def _check_plans(stock: _Stock, problems: list[Problem]) -> None:
    plans: dict[str, dict[tuple[str, ...], Any] | None] = {}
    for digest, words in stock.records.items():
        file = stock.sound.get(("plans", words.file_digest))
        if file is None:
            continue
        if file.digest not in plans:
            plans[file.digest] = _plan_at(file, {place for place, _ in words.said}, problems)
        plan = plans[file.digest]
        if plan is None:
            continue
        where = stock.store.path("records", digest)
        for place, expected in words.said:
            if plan[place] != expected:
                text = f"says plan {'.'.join(place)} is {expected!r}, the plan says {plan[place]!r}"
                problems.append(problem(where, "broken_reference", text))


def _plan_at(
    file: FoundFile, places: Iterable[tuple[str, ...]], problems: list[Problem]
) -> dict[tuple[str, ...], Any] | None:
    """What stands in some places of a plan; ``None`` when it cannot be read."""
    try:
        document = parse_json(file.path.read_bytes(), where=str(file.path))
    except InvalidInputError as error:
        problems.append(problem(file.path, "invalid", one_line(error)))
        return None
    return {place: _at(document, place) for place in places}


def _check_verdicts(stock: _Stock, problems: list[Problem]) -> None:
    for digest, (record_digest, plan_digest) in stock.verdicts.items():
        record = stock.records.get(record_digest)
        if record is None:
            continue
        named = dict(record.said)["digest",]
        if named != plan_digest:
            text = f"names plan {plan_digest}, its record names {named}"
            where = stock.store.path("verdicts", digest)
            problems.append(problem(where, "broken_reference", text))


def _at(document: Any, place: tuple[str, ...]) -> Any:
    for name in place:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document

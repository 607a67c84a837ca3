"""Checking a remote store where it is: every name, size and byte, and what statements name.

Holds no more than a piece of a file at a time, beside the statements' references. Whether a record
*passes* needs its tables: pull it, and verify the store it was pulled into.
"""

import hashlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.log.shard import LOG_FOLDER, MAX_SHARD_BYTES, is_shard_name, parse_shard
from harness.evidence.references import STATEMENT_TYPES, Reference, parse_kind_bytes, references_of
from harness.evidence.remote.remote import Remote, nothing_there, read, stream, where
from harness.evidence.remote.transfer import NUM_AT_ONCE
from harness.evidence.scan import TEMPORARY, Problem, one_line
from harness.evidence.signing.envelope import MAX_ENVELOPE_BYTES
from harness.evidence.store import MAX_FILE_BYTES, SIGNATURE_FOLDER, SUFFIXES, Kind

_SIGNATURE = re.compile(r"\A([0-9a-f]{64})\.[0-9a-f]{64}\.json\Z")


@dataclass(frozen=True, kw_only=True)
class RemoteCheck:
    """What was found in a remote store."""

    problems: tuple[Problem, ...]
    """Sorted by name."""
    num_files: int
    num_bytes: int
    num_records: int


@dataclass(frozen=True, kw_only=True)
class _Hashed:
    name: str
    size_bytes: int
    digest: str
    references: tuple[Reference, ...] = ()


def check_remote(remote: Remote) -> RemoteCheck:
    """Hash every file of a remote store, and compare it with its name and with what names it.

    Raises:
        EvidenceError: When there is no store at that address.
        NotEvaluableError: When it cannot be reached.
    """
    problems: list[Problem] = []
    names = [
        (folder, name)
        for folder in (*SUFFIXES, SIGNATURE_FOLDER)
        for name in sorted(remote.names(folder))
    ]
    if not names:
        raise nothing_there(remote)
    with ThreadPoolExecutor(max_workers=NUM_AT_ONCE) as pool:
        results = list(pool.map(lambda item: _look(remote, *item), names))
    problems += [each for each in results if isinstance(each, Problem)]
    sound = {each.name: each for each in results if isinstance(each, _Hashed)}
    for file in sound.values():
        problems += _missing(remote, file, sound, problems)
    problems += _unnamed(remote, sound)
    problems += _shards(remote, sound, problems)
    return RemoteCheck(
        problems=tuple(sorted(set(problems))),
        num_files=len(names),
        num_bytes=sum(each.size_bytes for each in sound.values()),
        num_records=sum(each.name.startswith("records/") for each in sound.values()),
    )


def _look(remote: Remote, folder: str, name: str) -> _Hashed | Problem:
    place = f"{folder}/{name}"
    limit = MAX_ENVELOPE_BYTES if folder == SIGNATURE_FOLDER else MAX_FILE_BYTES[_kind(folder)]
    bad = _name_problem(remote, folder, name)
    if bad is not None:
        return bad
    try:
        if folder in STATEMENT_TYPES:
            return _statement(remote, _kind(folder), name)
        digest, size = hashlib.sha256(), 0
        for piece in stream(remote, place, max_bytes=limit):
            digest.update(piece)
            size += len(piece)
        found = _Hashed(name=place, size_bytes=size, digest=f"sha256:{digest.hexdigest()}")
        return found if folder == SIGNATURE_FOLDER else _named_right(remote, found)
    except InvalidInputError as error:
        return _problem(remote, place, "unsafe", one_line(error))


def _statement(remote: Remote, kind: Kind, name: str) -> _Hashed | Problem:
    place = f"{kind}/{name}"
    data = read(remote, place, max_bytes=MAX_FILE_BYTES[kind])
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    found = _named_right(remote, _Hashed(name=place, size_bytes=len(data), digest=digest))
    if isinstance(found, Problem):
        return found
    try:
        statement = parse_kind_bytes(kind, data, where=place)
    except InvalidInputError as error:
        return _problem(remote, place, "invalid", one_line(error))
    references = tuple(references_of(statement, Path(place)))
    return _Hashed(name=place, size_bytes=len(data), digest=digest, references=references)


def _name_problem(remote: Remote, folder: str, name: str) -> Problem | None:
    place = f"{folder}/{name}"
    if TEMPORARY.match(name):
        text = "was left by a writer that was interrupted; it can be deleted"
        return _problem(remote, place, "leftover", text)
    if folder == SIGNATURE_FOLDER:
        proper = _SIGNATURE.match(name) is not None
    else:
        proper = (
            re.fullmatch(rf"[0-9a-f]{{64}}{re.escape(SUFFIXES[_kind(folder)])}", name) is not None
        )
    return None if proper else _problem(remote, place, "extra", "is not named by a digest")


def _named_right(remote: Remote, file: _Hashed) -> _Hashed | Problem:
    if file.digest == f"sha256:{Path(file.name).name[:64]}":
        return file
    text = f"was changed: its {file.size_bytes} bytes have {file.digest}"
    return _problem(remote, file.name, "modified", text)


def _missing(
    remote: Remote, file: _Hashed, sound: dict[str, _Hashed], known: list[Problem]
) -> Iterator[Problem]:
    reported = {each.path for each in known}
    for reference in file.references:
        name = _name(reference.kind, reference.digest)
        found, table = sound.get(name), reference.table
        if found is None and where(remote, name) not in reported:
            text = f"is missing: {reference.label} of {file.name}"
            yield _problem(remote, name, "missing", text)
        elif found and table and found.size_bytes != table.size_bytes:
            text = f"gives {reference.label} {table.size_bytes} bytes, it has {found.size_bytes}"
            yield _problem(remote, file.name, "broken_reference", text)


def _unnamed(remote: Remote, sound: dict[str, _Hashed]) -> Iterator[Problem]:
    named = {_name(each.kind, each.digest) for file in sound.values() for each in file.references}
    for name in sound:
        folder, file = name.split("/")
        signed = _SIGNATURE.match(file) if folder == SIGNATURE_FOLDER else None
        if signed is not None and f"records/{signed.group(1)}.json" not in sound:
            text = "signs a record that is not there, or not sound"
            yield _problem(remote, name, "broken_reference", text)
        elif signed is None and folder not in STATEMENT_TYPES and name not in named:
            text = "no statement that can be read names it"
            yield _problem(remote, name, "extra", text)


def _shards(remote: Remote, sound: dict[str, _Hashed], known: list[Problem]) -> Iterator[Problem]:
    reported = {each.path for each in known}
    for file in sorted(remote.names(LOG_FOLDER)):
        name = f"{LOG_FOLDER}/{file}"
        if not is_shard_name(file):
            yield _problem(remote, name, "extra", "is not named like a shard of a log")
            continue
        try:
            shard = parse_shard(Path(name), read(remote, name, max_bytes=MAX_SHARD_BYTES))
        except EvidenceError as error:
            yield _problem(remote, name, "unsafe", one_line(error))
            continue
        if shard.torn:
            text = f"ends in {len(shard.torn)} bytes that are no whole line"
            yield _problem(remote, name, "torn", text)
        for index, leaf in enumerate(shard.leaves()):
            if leaf is None:
                yield _problem(remote, name, "invalid", f"no leaf in line {index + 1}")
                continue
            found = sound.get(leaf.name)
            if where(remote, leaf.name) in reported:
                continue
            if found is None:
                text = f"is missing: the log names it ({shard.id}[{index}])"
                yield _problem(remote, leaf.name, "missing", text)
            elif (found.size_bytes, found.digest) != (leaf.size_bytes, leaf.digest):
                text = f"the log binds {leaf.size_bytes} bytes with {leaf.digest}"
                yield _problem(remote, leaf.name, "modified", text)


def _name(kind: Kind, digest: str) -> str:
    return f"{kind}/{digest.removeprefix('sha256:')}{SUFFIXES[kind]}"


def _kind(folder: str) -> Kind:
    return next(kind for kind in SUFFIXES if kind == folder)


def _problem(remote: Remote, name: str, kind: str, text: str) -> Problem:
    return Problem(path=where(remote, name), kind=kind, message=text)

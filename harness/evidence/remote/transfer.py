"""Copying statements with all that they name, a batch at a time, so that no statement comes first.

Used in both directions: who calls says how a statement is read and how one file is moved. One
fault ends nothing else; a statement that is damaged, or names what could not be moved, stays
behind and is named. Knows the order, nothing of where the files are.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from harness.canonical import bare_hex, sha256_digest
from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.references import STATEMENT_TYPES, parse_kind_bytes, references_of
from harness.evidence.scan import one_line
from harness.evidence.store import SUFFIXES, Kind

NUM_AT_ONCE = 8
_BATCH = 256
_SMALL_BYTES = 8 << 20
_MAX_LISTED = 50
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, kw_only=True)
class Named:
    """One file of a store that is to be moved."""

    kind: Kind
    digest: str
    size_bytes: int | None = None
    """As a statement says; ``None`` where none does."""

    @property
    def name(self) -> str:
        """Its name inside a store."""
        return f"{self.kind}/{bare_hex(self.digest)}{SUFFIXES[self.kind]}"

    @property
    def is_small(self) -> bool:
        """Whether several of its like fit into memory at once."""
        known = self.size_bytes is not None and self.size_bytes <= _SMALL_BYTES
        return known or self.kind in STATEMENT_TYPES


@dataclass(kw_only=True)
class Transfer:
    """What was moved, and what stayed behind."""

    moved: list[str] = field(default_factory=list)
    """Names of files that were not there before."""
    num_present: int = 0
    """Files that were there already."""
    refused: list[str] = field(default_factory=list)
    """What could not be moved, and why."""

    def require_whole(self, url: str) -> None:
        """Raise when anything stayed behind, naming it.

        Raises:
            EvidenceError: Listing what was refused, sorted.
        """
        if self.refused:
            listed = sorted(set(self.refused))
            rest = f"; and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
            raise EvidenceError(
                f"not everything was copied: {len(self.moved)} files were, "
                f"{self.num_present} were there",
                expected="every file sound, under its own digest",
                got="; ".join(listed[:_MAX_LISTED]) + rest,
                where=url,
                hint="restore or remove what is named; the same command goes on from here",
            )


@dataclass(frozen=True, kw_only=True)
class _Statement:
    file: Named
    data: bytes
    files: tuple[Named, ...]
    """What it names that is no statement."""
    names: tuple[str, ...]
    """Of all that it names."""


def transfer(
    wanted: Mapping[Kind, Sequence[str]],
    *,
    read: Callable[[Named], bytes],
    move: Callable[[Named, bytes | None], bool],
    in_turn: bool = False,
) -> Transfer:
    """Move statements, and before each of them all that it names.

    Args:
        wanted: Digests of the statements, by kind.
        read: The bytes of a statement, checked against its digest.
        move: Moves one file, with its bytes where they were read already; whether it was new where
            it went. Called from several threads.
        in_turn: Move statements one after another, in the calling thread.

    Raises:
        NotEvaluableError: When a side cannot be reached; what was moved stays.
    """
    done = Transfer()
    behind: set[str] = set()
    for kind in STATEMENT_TYPES:
        for digests in _batches(wanted.get(kind, ()), _BATCH):
            files = [Named(kind=kind, digest=digest) for digest in digests]
            statements = _parse_all(files, read, done, behind)
            named = {each.name: each for statement in statements for each in statement.files}
            parts = [each for name, each in named.items() if name not in behind]
            _note(_each(parts, lambda file: move(file, None)), done, behind)
            whole = {each.file: each.data for each in _whole(statements, done, behind)}
            moving = _in_turn if in_turn else _each
            _note(moving(list(whole), _with_bytes(move, whole)), done, behind)
    done.moved.sort()
    return done


def _with_bytes(
    move: Callable[[Named, bytes | None], bool], data: Mapping[Named, bytes]
) -> Callable[[Named], bool]:
    return lambda file: move(file, data[file])


def look_at(
    files: Sequence[Named], look: Callable[[Named], object]
) -> Iterator[tuple[Named, InvalidInputError]]:
    """Look at files, several at a time; yields those with which something is wrong."""
    for file, outcome in _each(files, look):
        if isinstance(outcome, InvalidInputError):
            yield file, outcome


def _parse_all(
    files: Sequence[Named], read: Callable[[Named], bytes], done: Transfer, behind: set[str]
) -> list[_Statement]:
    """The statements that can be read; the others stay behind."""
    found = []
    for file, outcome in _each(files, lambda each: _parsed(each, read(each))):
        if isinstance(outcome, _Statement):
            found.append(outcome)
        else:
            _refuse(file, outcome, done, behind)
    return found


def _whole(
    statements: Sequence[_Statement], done: Transfer, behind: set[str]
) -> Iterator[_Statement]:
    """Statements of which nothing stayed behind."""
    for statement in statements:
        missing = sorted(name for name in statement.names if name in behind)
        if missing:
            error = EvidenceError(f"names what stayed behind: {missing[0]}")
            _refuse(statement.file, error, done, behind)
        else:
            yield statement


def _parsed(file: Named, data: bytes) -> _Statement:
    path = Path(file.name)
    if sha256_digest(data) != file.digest:
        raise EvidenceError(f"was changed: its bytes have {sha256_digest(data)}")
    statement = parse_kind_bytes(file.kind, data, where=file.name)
    named = [
        Named(
            kind=each.kind,
            digest=each.digest,
            size_bytes=None if each.table is None else each.table.size_bytes,
        )
        for each in references_of(statement, path)
    ]
    return _Statement(
        file=file,
        data=data,
        files=tuple(each for each in named if each.kind not in STATEMENT_TYPES),
        names=tuple(each.name for each in named),
    )


def _note(
    outcomes: Iterable[tuple[Named, bool | InvalidInputError]], done: Transfer, behind: set[str]
) -> None:
    for file, outcome in outcomes:
        if isinstance(outcome, InvalidInputError):
            _refuse(file, outcome, done, behind)
        elif outcome:
            done.moved.append(file.name)
        else:
            done.num_present += 1


def _refuse(file: Named, error: InvalidInputError, done: Transfer, behind: set[str]) -> None:
    behind.add(file.name)
    done.refused.append(f"{file.name}: {one_line(error)}")


def _each(
    files: Sequence[Named], work: Callable[[Named], Outcome]
) -> Iterator[tuple[Named, Outcome | InvalidInputError]]:
    """Do the same with every file: small ones several at a time, large ones each alone."""
    small = [file for file in files if file.is_small]
    pool = ThreadPoolExecutor(max_workers=NUM_AT_ONCE)
    try:
        yield from pool.map(lambda file: _tried(file, work), small)
    finally:
        # After a failure nothing more is begun.
        pool.shutdown(cancel_futures=True)
    yield from _in_turn([file for file in files if not file.is_small], work)


def _in_turn(
    files: Sequence[Named], work: Callable[[Named], Outcome]
) -> Iterator[tuple[Named, Outcome | InvalidInputError]]:
    yield from (_tried(file, work) for file in files)


def _tried(
    file: Named, work: Callable[[Named], Outcome]
) -> tuple[Named, Outcome | InvalidInputError]:
    try:
        return file, work(file)
    except InvalidInputError as error:
        return file, error


def _batches(items: Sequence[Item], size: int) -> Iterable[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))

"""One file of a hub's commit into a folder: resumed where it broke off, verified, then named.

A file that is not whole lies under its name and ``.part``. Knows one file at a time, and not what
it holds.
"""

import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.checkpoint.hub_http import (
    RANGE_REFUSED,
    Answer,
    Commit,
    InterruptedTransferError,
    get,
    persist,
    public,
)
from harness.errors import CheckpointError, NotEvaluableError

PART_SUFFIX = ".part"
_PIECE_BYTES = 4 << 20
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(\d{1,18}|\*)")


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file as it is declared or pinned; at least one digest is known."""

    name: str
    size_bytes: int
    sha256: str | None
    """Of the content, prefixed; a hub declares it of large files."""
    git_sha1: str | None
    """Git's id of the content as a blob, bare hex; a hub declares it of small files."""


def transfer(
    commit: Commit, file: RemoteFile, folder: Path, *, tell: Callable[[int], None]
) -> None:
    """Put a verified file into a folder.

    Args:
        commit: Where the file comes from.
        file: What it must be.
        folder: Where it goes; what an earlier transfer left there is used.
        tell: Told how many of the file's bytes are there.

    Raises:
        CheckpointError: When what came is not the file; nothing of it is kept.
        NotEvaluableError: When it did not come whole, or has no space; what came is kept.
    """
    final = folder / file.name
    part = folder / (file.name + PART_SUFFIX)
    if final.exists() and not differences(final, file):
        tell(file.size_bytes)
        return
    final.unlink(missing_ok=True)
    where = f"file {file.name} of {commit}"
    try:
        persist(
            lambda: _go_on(commit, file, part, where=where, tell=tell),
            problem="a file did not arrive whole from the hub",
            where=where,
            hint="check the network and run again: the transfer goes on where it broke off",
        )
        if problems := differences(part, file):
            raise CheckpointError(
                "a file from the hub is not the one that was asked for",
                expected="; ".join(expected for expected, _ in problems),
                got="; ".join(got for _, got in problems),
                where=where,
                hint="run again, in case it was damaged on its way; else freeze a plan for the "
                "files that the repository now has",
            )
    except CheckpointError:
        part.unlink(missing_ok=True)
        raise
    os.rename(part, final)


def kept_bytes(folder: Path, file: RemoteFile) -> int:
    """Bytes of a file that are in a folder already."""
    for path in (folder / file.name, folder / (file.name + PART_SUFFIX)):
        if path.exists():
            return min(path.stat().st_size, file.size_bytes)
    return 0


def differences(path: Path, file: RemoteFile) -> list[tuple[str, str]]:
    """What was expected and what a file on disk has, where they differ."""
    size = path.stat().st_size
    if size != file.size_bytes:
        return [(f"{file.size_bytes} bytes", f"{size} bytes")]
    sha256 = hashlib.sha256()
    git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as opened:
        while piece := opened.read(_PIECE_BYTES):
            sha256.update(piece)
            if file.git_sha1 is not None:
                git.update(piece)
    found = []
    if file.sha256 is not None and file.sha256 != (got := "sha256:" + sha256.hexdigest()):
        found.append((file.sha256, got))
    if file.git_sha1 is not None and file.git_sha1 != git.hexdigest():
        found.append((f"git blob {file.git_sha1}", f"git blob {git.hexdigest()}"))
    return found


def _go_on(
    commit: Commit, file: RemoteFile, part: Path, *, where: str, tell: Callable[[int], None]
) -> None:
    """One attempt: ask for what is missing and append it."""
    with _space(file, part, where), part.open("ab", buffering=0) as target:
        done = target.seek(0, os.SEEK_END)
        if done > file.size_bytes:
            done = target.truncate(0)
        if done == file.size_bytes:
            return
        asked = f"bytes={done}-" if done else None
        what = f"file {file.name}"
        with get(commit, commit.file_url(file.name), what=what, byte_range=asked) as answer:
            done = answer_begin(answer, file, done, where=where)
            target.truncate(done)
            tell(done)
            for piece in answer.pieces:
                done += len(piece)
                if done > file.size_bytes:
                    raise _wrong_size(file, f"more than {file.size_bytes} bytes", where)
                _write(target.write, piece)
                tell(done)
    if done < file.size_bytes:
        raise InterruptedTransferError(f"{done} of {file.size_bytes} bytes")


def answer_begin(answer: Answer, file: RemoteFile, done: int, *, where: str) -> int:
    """Where an answer's body begins in its file: at ``done``, as asked, or (without ranges) at 0.

    Raises:
        CheckpointError: When the file's size is not the declared one.
        InterruptedTransferError: When the answer is for another range, or for none.
    """
    stated = answer.headers.get("content-range", "")
    match = _CONTENT_RANGE.fullmatch(stated)
    total = match[2] if match else "*"
    if answer.status == 200:
        total = answer.headers.get("content-length", "*")
    if total not in ("*", str(file.size_bytes)):
        raise _wrong_size(file, f"{public(total)} bytes", where)
    if answer.status == 200:
        return 0
    if answer.status == RANGE_REFUSED or match is None or match[1] != str(done):
        raise InterruptedTransferError(
            f"status {answer.status} and range {public(stated)!r} for bytes from {done} on"
        )
    return done


def _wrong_size(file: RemoteFile, got: str, where: str) -> CheckpointError:
    return CheckpointError(
        "the hub gives a file of another size than it should have",
        expected=f"{file.size_bytes} bytes",
        got=got,
        where=where,
        hint="run again; if it stays so, the repository does not hold what it declares",
    )


def _write(write: Callable[[memoryview], int | None], piece: bytes) -> None:
    left = memoryview(piece)
    while left:
        left = left[write(left) or 0 :]


@contextmanager
def _space(file: RemoteFile, part: Path, where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise NotEvaluableError(
            "there is no disk space for a file",
            expected=f"{file.size_bytes} bytes for it",
            got=f"{error.strerror}; {kept_bytes(part.parent, file)} bytes are there, and kept",
            where=f"{where}, into {part.parent}",
            hint="free space or raise the limit and run again, or set HARNESS_CACHE elsewhere",
        ) from error

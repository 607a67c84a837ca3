"""The cache of fetched checkpoints: a folder appears under its final name whole, or not at all.

``<cache>/<name>/`` is a finished folder with a completion marker; ``<cache>/.staging/`` holds work
in progress and ``<cache>/.locks/`` one lock file for each name. A lock dies with its process, so
whatever lies in staging under a name whose lock is held by us was left by a dead one. It is
removed, or gone on with where the maker can do so.
"""

import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.canonical import canonical_bytes, file_digest, read_json, write_durable
from harness.errors import CheckpointError, InvalidInputError, NotEvaluableError

MARKER_NAME = ".complete.json"
MARKER_SCHEMA = "harness.fetched/1"
_KEPT = "kept"
Progress = Callable[[str, float | None], None]
"""Called with what is being done and, where known, the fraction done."""


def default_cache() -> Path:
    """``$HARNESS_CACHE``, else ``$XDG_CACHE_HOME/inference-harness``, else the home's cache."""
    chosen = os.environ.get("HARNESS_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "inference-harness"


def obtain(
    cache: Path,
    name: str,
    source: Mapping[str, Any],
    make: Callable[[Path], None],
    *,
    progress: Progress,
    resumable: bool = False,
) -> Path:
    """Return the finished folder ``cache/name``; make it first when it is not there.

    Args:
        cache: Root of the cache; made when missing.
        name: Name of the folder, which must depend on everything that its content depends on.
        source: What the folder was made from; written into the marker.
        make: Fills an empty folder, given as its argument. May fail or be killed at any moment.
        progress: Told when another process makes the same folder.
        resumable: Whether ``make`` goes on with what an attempt that failed, or was killed, left in
            the folder; it starts no process that could outlive it.

    Raises:
        CheckpointError: When the finished folder is not as it was when it was made.
        NotEvaluableError: When the cache cannot be written.
    """
    final = cache / name
    try:
        if not final.is_dir():
            _make_once(cache, name, source, make, progress, resumable)
    except OSError as error:
        raise NotEvaluableError(
            "the checkpoint cache cannot be written",
            got=str(error),
            where=str(cache),
            hint="free space, or set HARNESS_CACHE to a folder that can be written",
        ) from error
    _check(final)
    return final


def _make_once(
    cache: Path,
    name: str,
    source: Mapping[str, Any],
    make: Callable[[Path], None],
    progress: Progress,
    resumable: bool,
) -> None:
    for folder in (cache / ".staging", cache / ".locks"):
        folder.mkdir(parents=True, exist_ok=True)
    with _locked(cache / ".locks" / f"{name}.lock", progress):
        final = cache / name
        if final.is_dir():
            return
        # A name of its own, since a child of a killed process may still write into the old one.
        work = cache / ".staging" / f"{name}.{_KEPT if resumable else secrets.token_hex(8)}"
        for left in (cache / ".staging").glob(f"{name}.*"):
            if left != work:
                shutil.rmtree(left, ignore_errors=True)
        work.mkdir(exist_ok=resumable)
        try:
            make(work)
            _finish(work, source)
            os.rename(work, final)
            _sync(cache)
        finally:
            if not resumable:
                shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that makes the same checkpoint", None)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _files(folder: Path) -> dict[str, os.stat_result]:
    return {
        path.relative_to(folder).as_posix(): path.lstat()
        for path in sorted(folder.rglob("*"))
        if not path.is_dir() and path.name != MARKER_NAME
    }


def _finish(work: Path, source: Mapping[str, Any]) -> None:
    files = []
    for name, status in _files(work).items():
        path = work / name
        if path.is_symlink() or not path.is_file():
            raise CheckpointError("a fetched file is not a regular file", got=name)
        _sync(path)
        files.append(
            {
                "name": name,
                "size_bytes": status.st_size,
                # Nanoseconds exceed the integers that JSON readers agree on.
                "modified_ns": str(status.st_mtime_ns),
                "sha256": file_digest(path),
            }
        )
    document = {"schema": MARKER_SCHEMA, "source": dict(source), "files": files}
    write_durable(work / MARKER_NAME, canonical_bytes(document))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check(final: Path) -> None:
    try:
        document = read_json(final / MARKER_NAME)
        declared = {file["name"]: file for file in document["files"]}
        if document["schema"] != MARKER_SCHEMA:
            raise KeyError("schema")
    except (InvalidInputError, KeyError, TypeError) as error:
        raise _damaged(final, f"{MARKER_NAME} is missing or not valid") from error
    found = _files(final)
    problems = [f"{name} was added" for name in found.keys() - declared.keys()]
    for name, file in declared.items():
        status = found.get(name)
        if status is None:
            problems.append(f"{name} is missing")
        elif status.st_size != file["size_bytes"]:
            problems.append(f"{name} has {status.st_size} bytes, not {file['size_bytes']}")
        elif (
            str(status.st_mtime_ns) != file["modified_ns"]
            and file_digest(final / name) != file["sha256"]
        ):
            # A copied or restored cache has other times and the same bytes.
            problems.append(f"{name} has other bytes")
    if problems:
        raise _damaged(final, "; ".join(sorted(problems)))


def _damaged(final: Path, got: str) -> CheckpointError:
    return CheckpointError(
        "a cached checkpoint is not as it was when it was made",
        expected="the files of its completion marker, unchanged",
        got=got,
        where=str(final),
        hint="delete this folder and run again",
    )


def folder_name(kind: str, identity: Mapping[str, Any]) -> str:
    """Name of a cache folder: the kind, and a digest of everything its content depends on."""
    return f"{kind}-{hashlib.sha256(canonical_bytes(dict(identity))).hexdigest()[:32]}"


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a small companion file in a form that depends on the document alone."""
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")

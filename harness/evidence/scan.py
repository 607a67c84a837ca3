"""Scanning a folder of named files and hashing what is found, for verification.

Every entry becomes a file to look at or a problem; nothing is followed, opened twice or skipped in
silence. Hashing uses every core. Knows folders and hashes, nothing of statements.
"""

import hashlib
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from harness.errors import EvidenceError
from harness.evidence.files import OPEN_FLAGS, open_regular
from harness.evidence.redact import escape_terminal

TEMPORARY = re.compile(r"\A\..+\.(\d{1,10})\.[0-9a-f]{8}\.tmp\Z")
_CLOCK_SLACK_S = 2.0
_BUFFER_BYTES = 1 << 20
_BATCH_BYTES = 32 << 20
_BATCH_FILES = 512


@dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """One thing that is wrong with a store or a folder of plans."""

    path: str
    kind: str
    """``modified``, ``truncated``, ``crlf``, ``renamed``, ``missing``, ``extra``, ``leftover``,
    ``unsafe`` (a link, a device, an unreadable or endless file), ``invalid`` (breaks its schema) or
    ``broken_reference`` (contradicts what it refers to)."""
    message: str

    def __str__(self) -> str:
        # One line, whatever a file is called.
        return f"{escape_terminal(self.path)}: {escape_terminal(self.message)} [{self.kind}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundFile:
    """A regular file and the digest of its bytes."""

    folder: Path
    name: str
    size_bytes: int
    digest: str

    @property
    def path(self) -> Path:
        """Where it is. Made when asked for: a store has hundreds of thousands of files."""
        return self.folder / self.name


class Entry(NamedTuple):
    """A regular file, not yet opened."""

    folder: Path
    name: str
    size_bytes: int

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder / self.name


def scan(
    folder: Path,
    problems: list[Problem],
    *,
    max_bytes: int,
    subfolders: Collection[str] = (),
) -> list[Entry]:
    """Regular files of a folder with their sizes, sorted; all but ``subfolders`` is reported."""
    found = []
    if folder.is_symlink():
        problems.append(problem(folder, "unsafe", "is a symbolic link, expected a folder"))
        return []
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # a running writer's temporary file
        temporary = TEMPORARY.match(entry.name)
        if stat.S_ISREG(status.st_mode) and status.st_size <= max_bytes and not temporary:
            found.append(Entry(folder, entry.name, status.st_size))
            continue
        path = folder / entry.name
        if stat.S_ISLNK(status.st_mode):
            problems.append(problem(path, "unsafe", "is a symbolic link; links are not followed"))
        elif not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            problems.append(problem(path, "unsafe", "is not a regular file"))
        elif temporary:
            if not _writer_is_running(int(temporary.group(1)), status.st_mtime):
                text = "was left by a writer that was interrupted; it can be deleted"
                problems.append(problem(path, "leftover", text))
        elif stat.S_ISDIR(status.st_mode):
            if entry.name not in subfolders:
                problems.append(problem(path, "extra", "is a folder that does not belong here"))
        else:
            text = f"is {status.st_size} bytes long, at most {max_bytes} are read"
            problems.append(problem(path, "unsafe", text))
    return found


def dead_leftovers(folder: Path) -> list[Path]:
    """Temporary folders of writers that no longer run, such as a killed run's."""
    found = []
    for path in sorted(folder.glob(".*.tmp")):
        named = TEMPORARY.match(path.name)
        if named and path.is_dir() and not path.is_symlink():
            modified_at = path.stat(follow_symlinks=False).st_mtime
            if not _writer_is_running(int(named.group(1)), modified_at):
                found.append(path)
    return found


def hash_all(entries: Iterable[Entry], problems: list[Problem]) -> list[FoundFile]:
    """Hash files on every core, largest first; unreadable ones are reported. Sorted by path."""
    ordered = sorted(entries, key=lambda entry: (-entry.size_bytes, entry.name))
    batches = list(_batches(ordered))
    if len(batches) == 1:  # threads take longer to start
        results = _hash_batch(ordered)
    else:
        with ThreadPoolExecutor(max_workers=_num_cores()) as pool:
            results = [each for part in pool.map(_hash_batch, batches) for each in part]
    problems.extend(result for result in results if isinstance(result, Problem))
    found = [result for result in results if isinstance(result, FoundFile)]
    return sorted(found, key=lambda file: (str(file.folder), file.name))


def _batches(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Parts of about as many bytes each, so that a thread is asked for something seldom."""
    start = num_bytes = 0
    for index, entry in enumerate(entries):
        num_bytes += entry.size_bytes
        if num_bytes >= _BATCH_BYTES or index - start >= _BATCH_FILES:
            yield entries[start : index + 1]
            start, num_bytes = index + 1, 0
    yield entries[start:]


def one_line(error: Exception) -> str:
    """An error's message on one line."""
    return re.sub(r"\s*\n\s*", "; ", str(error))


def problem(path: Path, kind: str, message: str) -> Problem:
    """A problem of the file or folder at ``path``."""
    return Problem(path=str(path), kind=kind, message=message)


def _hash_batch(entries: Sequence[Entry]) -> list[FoundFile | Problem]:
    """Hash files one after another into one buffer; each is opened once, and no link is followed.

    Written for many small files: what stands in this loop costs as much as hashing does.
    """
    buffer = bytearray(_BUFFER_BYTES)
    view, found = memoryview(buffer), list[FoundFile | Problem]()
    for entry in entries:
        folder, name, _ = entry
        try:
            descriptor = os.open(f"{folder}/{name}", OPEN_FLAGS)
        except OSError:
            found.append(_hash_stream(entry))  # says why
            continue
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_size < _BUFFER_BYTES:
                length = os.readv(descriptor, [buffer])
                if length == status.st_size:
                    digest = f"sha256:{hashlib.sha256(view[:length]).hexdigest()}"
                    file = FoundFile(folder=folder, name=name, size_bytes=length, digest=digest)
                    found.append(file)
                    continue
        except OSError:
            pass
        finally:
            os.close(descriptor)
        found.append(_hash_stream(entry))
    return found


def _hash_stream(entry: Entry) -> FoundFile | Problem:
    """Hash one file of any size, or say why it cannot be read."""
    try:
        with open_regular(entry.path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            # What was hashed; the name may have been given to another file since it was listed.
            size_bytes = file.tell()
    except (EvidenceError, OSError) as error:
        return problem(entry.path, "unsafe", one_line(error))
    return FoundFile(
        folder=entry.folder, name=entry.name, size_bytes=size_bytes, digest=f"sha256:{digest}"
    )


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _writer_is_running(pid: int, written_at: float) -> bool:
    """Whether the process that wrote a temporary file still runs, and is not a later namesake."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError):
        return False
    started_at = time.time() - uptime_s + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return fields[0] != "Z" and started_at <= written_at + _CLOCK_SLACK_S

"""Scanning a folder of named files and hashing what is found, for verification.

Every entry becomes a file to look at or a problem; nothing is followed, opened twice or skipped in
silence. Hashing uses every core. Knows folders and hashes, nothing of statements.
"""

import hashlib
import os
import re
import stat
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.errors import EvidenceError
from harness.evidence.files import open_regular

TEMPORARY = re.compile(r"\A\..+\.(\d{1,10})\.[0-9a-f]{8}\.tmp\Z")
_CLOCK_SLACK_S = 2.0


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
        return f"{self.path}: {self.message} [{self.kind}]"


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """A regular file and the digest of its bytes."""

    path: Path
    size_bytes: int
    digest: str


def scan(
    folder: Path,
    problems: list[Problem],
    *,
    max_bytes: int,
    subfolders: Collection[str] = (),
) -> list[tuple[Path, int]]:
    """Regular files of a folder with their sizes, sorted; all but ``subfolders`` is reported."""
    found = []
    if folder.is_symlink():
        problems.append(problem(folder, "unsafe", "is a symbolic link, expected a folder"))
        return []
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        path = folder / entry.name
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # a running writer's temporary file
        temporary = TEMPORARY.match(entry.name)
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
        elif status.st_size > max_bytes:
            text = f"is {status.st_size} bytes long, at most {max_bytes} are read"
            problems.append(problem(path, "unsafe", text))
        else:
            found.append((path, status.st_size))
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


def hash_all(files: Iterable[tuple[Path, int]], problems: list[Problem]) -> list[FoundFile]:
    """Hash files on every core, largest first; unreadable ones are reported."""
    ordered = sorted(files, key=lambda item: (-item[1], item[0]))
    with ThreadPoolExecutor(max_workers=_num_cores()) as pool:
        results = list(pool.map(lambda item: _hash(*item), ordered))
    problems.extend(result for result in results if isinstance(result, Problem))
    found = [result for result in results if isinstance(result, FoundFile)]
    return sorted(found, key=lambda file: file.path)


def one_line(error: Exception) -> str:
    """An error's message on one line."""
    return re.sub(r"\s*\n\s*", "; ", str(error))


def problem(path: Path, kind: str, message: str) -> Problem:
    """A problem of the file or folder at ``path``."""
    return Problem(path=str(path), kind=kind, message=message)


def _hash(path: Path, size_bytes: int) -> FoundFile | Problem:
    try:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (EvidenceError, OSError) as error:
        return problem(path, "unsafe", one_line(error))
    return FoundFile(path=path, size_bytes=size_bytes, digest=f"sha256:{digest}")


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

"""Limits that control groups put on this process, in both versions of the interface.

A limit of any group on the way up to the root holds. Knows nothing of what the limits are for.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
_ESCAPE = re.compile(r"\\([0-7]{3})")
_UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as the largest page-rounded integer."""


@dataclass(frozen=True, kw_only=True)
class _Hierarchy:
    mount: Path
    root: PurePosixPath
    """The group that the mount point shows."""
    unified: bool
    controllers: frozenset[str]


def _hierarchies(proc: Path) -> Iterator[_Hierarchy]:
    for line in _lines(proc / "self" / "mountinfo"):
        before, separator, after = line.partition(" - ")
        fields, types = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(types) < 3:
            continue
        if types[0] in ("cgroup", "cgroup2"):
            yield _Hierarchy(
                mount=Path(_unescape(fields[4])),
                root=PurePosixPath(_unescape(fields[3])),
                unified=types[0] == "cgroup2",
                controllers=frozenset(types[2].split(",")),
            )


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), text)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "backslashreplace").splitlines()
    except OSError:
        return []


def _groups(controller: str, proc: Path) -> Iterator[tuple[Path, bool]]:
    """Folders of this process's groups under a controller, from the leaf up; and the version."""
    hierarchies = list(_hierarchies(proc))
    for line in _lines(proc / "self" / "cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        unified = number == "0" and not controllers
        if not unified and controller not in controllers.split(","):
            continue
        for hierarchy in hierarchies:
            if hierarchy.unified != unified:
                continue
            if not unified and controller not in hierarchy.controllers:
                continue
            for folder in _upwards(hierarchy, PurePosixPath(path)):
                yield folder, unified


def _upwards(hierarchy: _Hierarchy, group: PurePosixPath) -> Iterator[Path]:
    # Inside a container the group's path may be the host's, of which the mount shows only a part.
    inside = group.relative_to(hierarchy.root).parts if group.is_relative_to(hierarchy.root) else ()
    parts = [part for part in inside if part != ".."]
    for count in range(len(parts), -1, -1):
        yield hierarchy.mount.joinpath(*parts[:count])


def _number(path: Path) -> int | None:
    """The integer in a limit file; ``None`` when there is no file or no limit."""
    lines = _lines(path)
    word = lines[0].strip() if lines else ""
    value = int(word) if re.fullmatch(r"\d{1,20}", word) else None
    return value if value is not None and value < _UNLIMITED else None


def memory_limit_bytes(*, proc: Path = PROC) -> int | None:
    """The least memory limit of this process's control groups, or ``None`` when there is none."""
    found = [
        _number(folder / ("memory.max" if unified else "memory.limit_in_bytes"))
        for folder, unified in _groups("memory", proc)
    ]
    return min((limit for limit in found if limit is not None), default=None)


def _quota(folder: Path, unified: bool) -> float | None:
    if unified:
        lines = _lines(folder / "cpu.max")
        words = lines[0].split() if lines else []
        if len(words) != 2 or not all(re.fullmatch(r"\d{1,18}", word) for word in words):
            return None
        quota, period = int(words[0]), int(words[1])
    else:
        given, every = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if given is None or every is None:
            return None
        quota, period = given, every
    return quota / period if period > 0 else None


def cpu_quota(*, proc: Path = PROC) -> float | None:
    """The least processor quota of this process's control groups, in processors, or ``None``."""
    found = [_quota(folder, unified) for folder, unified in _groups("cpu", proc)]
    return min((quota for quota in found if quota is not None), default=None)

"""What a launcher is asked for: which engine runs the jobs of a sweep, and how many at once.

Knows the fields of a composed launcher, no engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import InvalidInputError

MAX_AT_ONCE = 10_000
_FIELDS: Mapping[str, frozenset[str]] = {
    "basic": frozenset(),
    "joblib": frozenset({"num_jobs"}),
    "submitit": frozenset({"num_jobs", "executor", "folder", "timeout_min", "parameters"}),
    "ray": frozenset({"num_jobs", "address", "num_cpus"}),
}
_EXECUTORS = (None, "local", "slurm")


@dataclass(frozen=True, kw_only=True)
class LauncherSettings:
    """One launcher, checked."""

    kind: str
    num_jobs: int = 1
    """Most jobs at once."""
    executor: str | None = None
    """Of submitit; ``None`` takes Slurm where it is, else this machine."""
    folder: Path = Path("runs/submitit")
    """Where submitit keeps its files."""
    timeout_min: int = 1440
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters of submitit's executor, such as ``slurm_partition``."""
    address: str | None = None
    """Of a Ray cluster; ``None`` starts one on this machine."""
    num_cpus: int = 1
    """Cores that Ray sets aside for a job."""


def parse_settings(launcher: Mapping[str, Any], root: Path) -> LauncherSettings:
    """Check the section ``launcher`` of a composed experiment.

    Args:
        launcher: Its fields.
        root: Folder in which a relative ``folder`` starts.

    Raises:
        InvalidInputError: Naming every field that is unknown to this kind, or of another form.
    """
    kind = str(launcher.get("kind"))
    known = _FIELDS.get(kind)
    if known is None:
        raise InvalidInputError("no such launcher", expected=", ".join(_FIELDS), got=kind)
    given = {name: value for name, value in launcher.items() if name != "kind"}
    faults = [f"{name}: unknown to {kind}" for name in given.keys() - known]
    faults += [f"{name}: {given[name]!r} {why}" for name, why in _faults(given)]
    if faults:
        raise InvalidInputError(
            "the launcher's settings are not valid:\n  - " + "\n  - ".join(sorted(faults)),
            expected=f"for {kind}: {', '.join(sorted(known)) or 'nothing'}",
        )
    if "folder" in given:
        given["folder"] = root / Path(given["folder"]).expanduser()
    return LauncherSettings(kind=kind, **given)


def _faults(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for name in ("num_jobs", "timeout_min", "num_cpus"):
        value = given.get(name, 1)
        if type(value) is not int or not 0 < value <= MAX_AT_ONCE:
            found.append((name, f"is no number from 1 to {MAX_AT_ONCE}"))
    if given.get("executor") not in _EXECUTORS:
        found.append(("executor", "is none of local, slurm, null"))
    for name, kinds in (("folder", str), ("address", str | None), ("parameters", dict)):
        if name in given and not isinstance(given[name], kinds):
            found.append((name, "has another type"))
        elif name == "folder" and name in given and not _is_folder_name(given[name]):
            found.append((name, "names no folder"))
    return found


def _is_folder_name(text: str) -> bool:
    try:
        Path(text).expanduser()
    except RuntimeError:  # There is no such user.
        return False
    return "\0" not in text

"""Says what this machine can and cannot do, before anyone runs anything. Changes nothing.

Each check is one finding; none raises. Imports no library that it looks for.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import harness
from harness.errors import HarnessError
from harness.measure import proc
from harness.measure.cgroup import memory_limit_bytes
from harness.measure.cpu import cpu_model, instruction_set, num_usable_cores, read_cpuinfo
from harness.measure.distributions import installed_version
from harness.measure.environment import allowed_variables, physical_memory_bytes
from harness.measure.extras import find_extras
from harness.measure.gpus import probe_gpus
from harness.measure.voids import machine_causes, variable_causes

Status = Literal["ok", "warning", "unavailable"]
DISTRIBUTION = "inference-harness"
PACKAGE_ROOT = Path(harness.__file__).resolve().parent.parent
_SMALL_MEMORY_BYTES = 4 << 30
_SMALL_DISK_BYTES = 4 << 30
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True, kw_only=True)
class DoctorFinding:
    """One thing that was looked at."""

    name: str
    status: Status
    """``unavailable``: something cannot be run here. ``warning``: it can, with a caveat."""
    message: str


def diagnose(*, cache_folder: Path | None = None) -> list[DoctorFinding]:
    """Look at everything a run needs, in a fixed order.

    Args:
        cache_folder: Where checkpoints are kept.
    """
    findings = [_system(), _python()]
    findings += _packages()
    findings += [_guarded("memory", _memory), _guarded("cores", _cores)]
    findings += [
        DoctorFinding(
            name="device simulated-accelerator",
            status="ok",
            message="runs on the CPU, with a memory of its own of the configured capacity",
        ),
        _gpus(),
        _variables(os.environ),
        _determinism(os.environ),
        _huge_pages(),
        _guarded("process memory", _process_memory),
        _cache(cache_folder),
        _kernels(),
    ]
    findings += _extras()
    return findings


def _guarded(name: str, check: Callable[[], DoctorFinding]) -> DoctorFinding:
    try:
        return check()
    except HarnessError as error:
        return DoctorFinding(name=name, status="unavailable", message=str(error))


def _project() -> tuple[str, list[str]]:
    """The required Python and packages, from the installed metadata or the source tree."""
    try:
        metadata = importlib.metadata.metadata(DISTRIBUTION)
        ranges = str(metadata.json.get("requires_python", ""))
        return ranges, importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        with (PACKAGE_ROOT / "pyproject.toml").open("rb") as file:
            project = tomllib.load(file)["project"]
        return project["requires-python"], list(project["dependencies"])
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return "", []


def version_satisfies(version: str, ranges: str) -> bool:
    """Whether a release is inside ``>=``, ``>``, ``<=``, ``<``, ``==``, ``!=``, ``~=`` bounds.

    Compares release numbers only: a pre-release counts as its release, a local build (``+cpu``) as
    the public one.
    """
    clauses = [clause.strip() for clause in ranges.split(",")]
    return all(_satisfies(version, clause) for clause in clauses if clause)


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\s*v?(?:\d+!)?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def _satisfies(version: str, clause: str) -> bool:
    match = re.fullmatch(r"(>=|<=|==|!=|~=|>|<)\s*([^\s*]+?)(\.\*)?", clause)
    if match is None:
        return True
    operator, bound_text, wildcard = match.groups()
    have, bound = _release(version), _release(bound_text)
    if wildcard is not None or operator == "~=":
        prefix = bound if wildcard is not None else bound[:-1]
        inside = have[: len(prefix)] == prefix
        return not inside if operator == "!=" else inside and (operator == "==" or have >= bound)
    width = max(len(have), len(bound))
    have += (0,) * (width - len(have))
    bound += (0,) * (width - len(bound))
    return {
        ">=": have >= bound,
        "<=": have <= bound,
        "==": have == bound,
        "!=": have != bound,
        ">": have > bound,
        "<": have < bound,
    }[operator]


def _system() -> DoctorFinding:
    is_linux = platform.system() == "Linux"
    return DoctorFinding(
        name="system",
        status="ok" if is_linux else "unavailable",
        message=f"{platform.system()} {platform.release()} on {platform.machine()}"
        + ("" if is_linux else "; running needs Linux, checking and verifying do not"),
    )


def _extras() -> Iterator[DoctorFinding]:
    for extra in find_extras(DISTRIBUTION, PACKAGE_ROOT):
        here = ", ".join(extra.installed) or "none of its packages is here"
        message = f"{extra.purpose}: {here}"
        if extra.missing:
            message = (
                f"{extra.purpose}: not here: {', '.join(extra.missing)}; "
                f"pip install 'inference-harness[{extra.name}]'"
            )
        yield DoctorFinding(
            name=f"extra {extra.name}",
            status="unavailable" if extra.missing else "ok",
            message=message,
        )


def _python() -> DoctorFinding:
    ranges, _ = _project()
    version = platform.python_version()
    fits = version_satisfies(version, ranges)
    return DoctorFinding(
        name="python",
        status="ok" if fits else "unavailable",
        message=f"{version} (needed: {ranges or 'unknown'})",
    )


def _packages() -> Iterator[DoctorFinding]:
    _, requirements = _project()
    if not requirements:
        yield DoctorFinding(
            name="packages", status="warning", message="the needed packages are not known here"
        )
    for requirement in requirements:
        text, _, marker = requirement.partition(";")
        match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?([^)]*)\)?", text)
        if match is None or "extra" in marker:
            continue
        name, ranges = match.group(1), match.group(2).strip()
        version = installed_version(name)
        if version is None:
            status: Status = "unavailable"
            message = f"not installed (needed: {ranges})"
        else:
            status = "ok" if version_satisfies(version, ranges) else "warning"
            message = f"{version} (needed: {ranges})"
        yield DoctorFinding(name=f"package {name}", status=status, message=message)


def _memory() -> DoctorFinding:
    physical, limit = physical_memory_bytes(), memory_limit_bytes()
    usable = physical if limit is None else min(physical, limit)
    cause = "physical memory" if usable == physical else "control group limit"
    enough = usable >= _SMALL_MEMORY_BYTES
    return DoctorFinding(
        name="memory",
        status="ok" if enough else "warning",
        message=f"{usable} bytes ({cause})" + ("" if enough else "; little for a real checkpoint"),
    )


def _cores() -> DoctorFinding:
    fields = read_cpuinfo()
    return DoctorFinding(
        name="cores",
        status="ok",
        message=f"{num_usable_cores()} usable, {instruction_set(fields)}, {cpu_model(fields)}",
    )


def _gpus() -> DoctorFinding:
    try:
        system = probe_gpus()
    except HarnessError as error:
        message = f"not_executed: {error.problem}: {error.got}"
        return DoctorFinding(name="device cuda-gpu", status="unavailable", message=message)
    listed = ", ".join(
        f"{gpu.name or 'unnamed'} ({gpu.compute_capability}, {gpu.memory_bytes} bytes)"
        for gpu in system.gpus
    )
    message = f"{listed}; driver {system.driver_version}"
    return DoctorFinding(name="device cuda-gpu", status="ok", message=message)


def _variables(variables: Mapping[str, str]) -> DoctorFinding:
    found = allowed_variables(variables)
    listed = ", ".join(f"{name}={value}" for name, value in found.items())
    return DoctorFinding(
        name="environment variables",
        status="warning" if found else "ok",
        message=f"set, and may change bits or threads: {listed}"
        if found
        else "none set that would change bits, threads or heap growth",
    )


def _determinism(variables: Mapping[str, str]) -> DoctorFinding:
    everywhere, here = machine_causes(), variable_causes(variables)
    if everywhere:
        status: Status = "unavailable"
        message = f"no claim of equal bits can be made here: {'; '.join([*everywhere, *here])}"
    elif here:
        status = "warning"
        message = (
            f"void for what is started in this environment: {'; '.join(here)}. The children of "
            "`harness run` are given an environment of their own"
        )
    else:
        status, message = "ok", "nothing was found that voids a claim of equal bits"
    return DoctorFinding(name="determinism", status=status, message=message)


def _huge_pages() -> DoctorFinding:
    try:
        match = re.search(r"\[(\w+)\]", _HUGE_PAGES.read_text())
    except OSError:
        match = None
    mode = match.group(1) if match else "unknown"
    always = mode == "always"
    return DoctorFinding(
        name="transparent huge pages",
        status="warning" if always else "ok",
        message=mode + ("; heap growth then comes in steps of 2 MiB" if always else ""),
    )


def _process_memory() -> DoctorFinding:
    usages = proc.read_smaps(os.getpid())
    num_descriptors = len(proc.read_descriptors(os.getpid()))
    return DoctorFinding(
        name="process memory",
        status="ok",
        message=f"/proc can be read ({len(usages)} mappings, {num_descriptors} descriptors)",
    )


def _cache(folder: Path | None) -> DoctorFinding:
    if folder is None:
        return DoctorFinding(name="cache folder", status="warning", message="none was given")
    # Nothing is created: the nearest folder that exists decides.
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return DoctorFinding(
            name="cache folder", status="unavailable", message=f"cannot write there: {error}"
        )
    free = shutil.disk_usage(existing).free
    return DoctorFinding(
        name="cache folder",
        status="ok" if free >= _SMALL_DISK_BYTES else "warning",
        message=f"{folder} can be written, {free} bytes are free"
        + ("" if free >= _SMALL_DISK_BYTES else "; little for a real checkpoint"),
    )


def _kernels() -> DoctorFinding:
    """A distribution of the name ``kernels`` is somebody else's package of our import name."""
    spec = importlib.util.find_spec("kernels")
    found = Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
    ours = found == PACKAGE_ROOT / "kernels"
    other = installed_version("kernels")
    if not ours:
        status: Status = "unavailable"
        message = (
            f"`import kernels` finds {'nothing' if found is None else found}, not this project's "
            "package; uninstall the distribution `kernels` or put this project first on the path"
        )
    elif other is not None:
        status = "warning"
        message = (
            f"the distribution `kernels` {other} is installed too; `import kernels` finds this "
            "project's package, and that distribution cannot be used in this environment"
        )
    else:
        status = "ok"
        message = "`import kernels` finds this project's package"
    return DoctorFinding(name="import name kernels", status=status, message=message)

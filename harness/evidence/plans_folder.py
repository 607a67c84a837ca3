"""Integrity of a folder of frozen plans: each plan has a true sidecar, each manifest its name.

    <folder>/<name>.json  <name>.json.sha256  manifests/<hex>.jsonl

Knows where a plan names its manifest, and nothing else of what a plan means.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.canonical import is_digest, parse_json
from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.damage import CRLF_HINT, describe_damage
from harness.evidence.files import read_regular
from harness.evidence.scan import FoundFile, Problem, hash_all, one_line, problem, scan
from harness.evidence.store import MAX_FILE_BYTES

_SIDECAR = re.compile(rb"\A([0-9a-f]{64})  ([^/\r\n]+)\n\Z")
_MANIFESTS = "manifests"
_SUFFIX = ".sha256"
_MAX_SIDECAR_BYTES = 4096


def verify_plans(folder: Path) -> list[Problem]:
    """Every problem of a plans folder, sorted.

    Raises:
        EvidenceError: When there is no such folder.
    """
    if not folder.is_dir():
        raise EvidenceError("no folder of plans here", where=str(folder))
    problems: list[Problem] = []
    limit = MAX_FILE_BYTES["plans"]
    entries = scan(folder, problems, max_bytes=limit, subfolders=(_MANIFESTS,))
    files = {file.name: file for file in hash_all(entries, problems)}
    manifests = _verify_manifests(folder / _MANIFESTS, problems)
    named: set[str] = set()
    for name, file in files.items():
        if name.endswith(_SUFFIX):
            target = name.removesuffix(_SUFFIX)
            if target not in files:
                text = f"there is a sidecar {name} but not the file"
                problems.append(problem(folder / target, "missing", text))
        elif name.endswith(".json"):
            _verify_plan(file, files, manifests, named, problems)
        else:
            problems.append(problem(file.path, "extra", "is neither a plan nor a sidecar"))
    for digest, path in manifests.items():
        if digest not in named:
            problems.append(problem(path, "extra", "no plan that can be read names it"))
    return sorted(problems)


def _verify_plan(
    file: FoundFile,
    files: Mapping[str, FoundFile],
    manifests: Mapping[str, Path],
    named: set[str],
    problems: list[Problem],
) -> None:
    sidecar = files.get(file.name + _SUFFIX)
    if sidecar is None:
        path = file.path.with_name(file.name + _SUFFIX)
        problems.append(problem(path, "missing", f"{file.name} has no sidecar"))
    else:
        _verify_sidecar(file, sidecar.path, problems)
    try:
        data = read_regular(file.path, max_bytes=MAX_FILE_BYTES["plans"])
        plan = parse_json(data, where=str(file.path))
    except InvalidInputError as error:
        problems.append(problem(file.path, "invalid", one_line(error)))
        return
    digest = manifest_digest(plan)
    if digest is None:
        return
    named.add(digest)
    if digest not in manifests:
        text = f"names a manifest that is not here, or is damaged: {digest}"
        problems.append(problem(file.path, "broken_reference", text))


def _verify_sidecar(file: FoundFile, sidecar: Path, problems: list[Problem]) -> None:
    try:
        data = read_regular(sidecar, max_bytes=_MAX_SIDECAR_BYTES)
    except EvidenceError as error:
        problems.append(problem(sidecar, "invalid", one_line(error)))
        return
    if b"\r" in data:
        problems.append(problem(sidecar, "crlf", CRLF_HINT))
        data = data.replace(b"\r\n", b"\n")
    match = _SIDECAR.match(data)
    if match is None:
        text = "is not `<64 hex digits>  <file name>` and one line end"
        problems.append(problem(sidecar, "invalid", text))
        return
    digest, name = f"sha256:{match.group(1).decode()}", match.group(2).decode("utf-8", "replace")
    if name != file.name:
        text = f"names {name!r}, not {file.name!r}"
        problems.append(problem(sidecar, "broken_reference", text))
    if digest != file.digest:
        kind, text = describe_damage(file.path, digest, size_bytes=file.size_bytes)
        problems.append(problem(file.path, kind, f"{text}, which its sidecar gives"))


def _verify_manifests(folder: Path, problems: list[Problem]) -> dict[str, Path]:
    """Sound manifests by digest."""
    if not folder.is_dir():
        return {}
    sound = {}
    limit = MAX_FILE_BYTES["manifests"]
    for file in hash_all(scan(folder, problems, max_bytes=limit), problems):
        digest = f"sha256:{file.name.removesuffix('.jsonl')}"
        if file.path.suffix != ".jsonl" or not is_digest(digest):
            text = "is not named by a digest, expected <64 hex digits>.jsonl"
            problems.append(problem(file.path, "extra", text))
        elif digest == file.digest:
            sound[digest] = file.path
        else:
            kind, text = describe_damage(file.path, digest, size_bytes=file.size_bytes)
            problems.append(problem(file.path, kind, text))
    return sound


def manifest_digest(plan: Any) -> str | None:
    """``checkpoint.manifest.digest`` of a plan document, or ``None`` when it has none."""
    value = plan
    for name in ("checkpoint", "manifest", "digest"):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else None

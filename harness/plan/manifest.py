"""The tensor manifest of a plan: which checkpoint tensors make which state, byte by byte.

Canonical JSON Lines sorted by key (code points), one content-addressed file. Knows no tensor's
meaning and opens no checkpoint.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from harness.canonical import (
    MAX_INTEGER,
    bare_hex,
    is_digest,
    json_lines,
    parse_json,
    read_bounded,
    sha256_digest,
)
from harness.errors import PlanError
from harness.plan.documents import to_document
from harness.plan.layout import DTYPE_BYTES
from harness.plan.load import CRLF_HINT
from harness.plan.records import Finding, ManifestReference

MAX_MANIFEST_BYTES = 256 << 20
MAX_LINES = 1_000_000
MAX_FINDINGS = 1000
FOLDER = "manifests"
DIGEST_SOURCES = ("none", "declared", "measured")


@dataclass(frozen=True, kw_only=True)
class ManifestEntry:
    """One checkpoint tensor that a plan fetches."""

    key: str
    file: str
    """Name of a file in ``checkpoint.files``."""
    dtype: str
    """Torch's name, as stored."""
    shape: tuple[int, ...]
    logical_state_id: str
    source_bytes: int
    """Bytes on disk."""
    expected_bytes: int
    """Bytes it contributes to the residency."""
    sha256: str | None
    """Prefixed digest of the stored bytes, or ``None``."""
    digest_source: str
    """``none``, ``declared`` or ``measured``."""


_NAMES = frozenset(field.name for field in fields(ManifestEntry))


def manifest_bytes(entries: Iterable[ManifestEntry]) -> bytes:
    """Serialize entries, sorted by key."""
    ordered = sorted(entries, key=lambda entry: entry.key)
    return json_lines({"sha256": None, **to_document(entry)} for entry in ordered)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_INTEGER


def _row_problem(row: Any) -> str | None:
    if not isinstance(row, dict) or row.keys() != _NAMES:
        return f"expected an object with the fields {', '.join(sorted(_NAMES))}"
    for name in ("key", "file", "logical_state_id"):
        if not isinstance(row[name], str) or not row[name]:
            return f"{name} is not a name"
    if not isinstance(row["dtype"], str) or row["dtype"] not in DTYPE_BYTES:
        return f"dtype is none of {', '.join(sorted(DTYPE_BYTES))}"
    if not isinstance(row["shape"], list) or not all(_is_count(size) for size in row["shape"]):
        return "shape is not a list of sizes"
    if not _is_count(row["source_bytes"]) or not _is_count(row["expected_bytes"]):
        return "byte counts are not integers from 0 to 2**53"
    if row["source_bytes"] != math.prod(row["shape"]) * DTYPE_BYTES[row["dtype"]]:
        return "source_bytes is not the size of dtype and shape"
    if row["digest_source"] not in DIGEST_SOURCES:
        return f"digest_source is none of {', '.join(DIGEST_SOURCES)}"
    if (row["sha256"] is None) != (row["digest_source"] == "none"):
        return "sha256 must be null exactly when digest_source is none"
    if row["sha256"] is not None and not (
        is_digest(row["sha256"]) and row["sha256"].startswith("sha256:")
    ):
        return "sha256 is not a prefixed SHA-256 digest"
    return None


def _row_findings(rows: Sequence[Any]) -> list[Finding]:
    findings: list[Finding] = []
    previous: str | None = None
    for number, row in enumerate(rows, start=1):
        problem = _row_problem(row)
        if problem is None:
            key = row["key"]
            if previous is not None and key == previous:
                problem = f"duplicate key {key!r}"
            elif previous is not None and key < previous:
                problem = f"key {key!r} is not sorted"
            previous = key
        if problem is not None:
            findings.append(Finding(path=f"line {number}", rule="manifest", message=problem))
        if len(findings) >= MAX_FINDINGS:
            break
    return findings


def parse_manifest(data: bytes, *, where: str) -> tuple[ManifestEntry, ...]:
    """Parse a manifest strictly: canonical lines, known fields, unique sorted keys.

    Raises:
        PlanError: With every bad line.
        InvalidInputError: When the lines are no strict JSON.
    """
    if b"\r\n" in data:
        raise PlanError("manifest has CRLF line endings", where=where, hint=CRLF_HINT)
    if data and not data.endswith(b"\n"):
        raise PlanError("manifest is cut off", expected="a newline at the end", where=where)
    if data.count(b"\n") > MAX_LINES:
        raise PlanError("manifest is too large", expected=f"at most {MAX_LINES} lines", where=where)
    # One parse for all lines; that the rows serialize back to the same bytes rules out anything
    # that the joining could have hidden.
    joined = b"[" + data.removesuffix(b"\n").replace(b"\n", b",") + b"]"
    rows = parse_json(joined, where=where, max_bytes=MAX_MANIFEST_BYTES)
    findings = _row_findings(rows)
    if findings:
        raise PlanError("not a valid tensor manifest", findings, where=where)
    if json_lines(rows) != data:
        raise PlanError(
            "manifest is not canonical", expected="one RFC 8785 object a line", where=where
        )
    return tuple(ManifestEntry(**{**row, "shape": tuple(row["shape"])}) for row in rows)


def manifest_path(folder: Path, reference: ManifestReference) -> Path:
    """Where the manifest of a plan in ``folder`` lies."""
    return folder / FOLDER / f"{bare_hex(reference.digest)}.jsonl"


def load_manifest(folder: Path, reference: ManifestReference) -> tuple[ManifestEntry, ...]:
    """Read the manifest a plan refers to, after its bytes matched the digest.

    Args:
        folder: The folder of the plan file.
        reference: ``checkpoint.manifest`` of the plan.

    Raises:
        PlanError: When the bytes have another digest or are no manifest.
        InvalidInputError: When there is no such file.
    """
    path = manifest_path(folder, reference)
    data = read_bounded(path, max_bytes=MAX_MANIFEST_BYTES)
    digest = sha256_digest(data)
    if digest != reference.digest:
        hint = CRLF_HINT if b"\r\n" in data else "restore the file from where the plan came from"
        raise PlanError(
            "the manifest's bytes do not match the plan",
            expected=reference.digest,
            got=digest,
            where=str(path),
            hint=hint,
        )
    return parse_manifest(data, where=str(path))

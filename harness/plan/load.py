"""Read plan files: strict JSON, schema, digest and sidecar, before anything trusts a plan.

Knows the documents' form; the rules on what they say are in ``check``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.canonical import bare_hex, parse_json, read_bounded, sha256_digest
from harness.errors import HarnessError, InvalidInputError, PlanError
from harness.plan.documents import plan_from_document
from harness.plan.format import format_of, plan_digest
from harness.plan.records import Finding, Plan
from harness.plan.schema import schema_findings

__all__ = ["Examined", "LoadedPlan", "examine_plan", "load_plan", "parse_plan", "plan_digest"]

MAX_PLAN_BYTES = 64 << 20
MAX_CONTAINERS = 50_000
MAX_COMMAS = 1_000_000
"""Bounds the values of a plan, and so the time that its schema takes."""
_MAX_SIDECAR_BYTES = 4096
CRLF_HINT = (
    "the line endings were rewritten by a CRLF checkout, and plans are byte-exact: "
    "run `git config core.autocrlf false`, delete the file and check it out again"
)
ANEW_HINT = (
    "restore the file: a frozen plan is never edited; another one is made by `harness plan derive`"
)


@dataclass(frozen=True, kw_only=True)
class LoadedPlan:
    """A plan whose schema and digest hold, and the bytes it came from."""

    plan: Plan
    document: dict[str, Any]
    file_digest: str
    """Prefixed digest of the file's bytes, as evidence names it."""
    path: Path | None


MISFITS = (TypeError, AttributeError, KeyError, ValueError, HarnessError)
"""What reading, or checking the rules of, a document of another form can end in."""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What a plan file holds, with every violation of form; ``loaded`` if it could be read.

    A document with violations may still be read, so that its rules can be checked as well.
    """

    loaded: LoadedPlan | None
    findings: tuple[Finding, ...]


def examine_plan(data: bytes, *, where: str, path: Path | None = None) -> Examined:
    """Parse a plan and list every schema violation and a wrong digest, without raising on them.

    Raises:
        InvalidInputError: When the bytes are no strict JSON or no plan at all.
    """
    if b"\r\n" in data:
        raise PlanError("plan has CRLF line endings", where=where, hint=CRLF_HINT)
    if data.count(b"{") + data.count(b"[") > MAX_CONTAINERS:
        raise PlanError(
            "plan is too large", expected=f"at most {MAX_CONTAINERS} objects", where=where
        )
    if data.count(b",") > MAX_COMMAS:
        raise PlanError("plan is too large", expected=f"at most {MAX_COMMAS} commas", where=where)
    document = parse_json(data, where=where, max_bytes=MAX_PLAN_BYTES)
    findings = schema_findings(format_of(document, where=where).schema_id, document)
    if findings:
        return Examined(loaded=_readable(document, data, path), findings=tuple(findings))
    actual = plan_digest(document)
    if document["digest"] != actual:
        message = f"digest does not match the document: stored {document['digest']}, is {actual}"
        findings.append(Finding(path="$.digest", rule="rule-01-identity", message=message))
    loaded = LoadedPlan(
        plan=plan_from_document(document),
        document=document,
        file_digest=sha256_digest(data),
        path=path,
    )
    return Examined(loaded=loaded, findings=tuple(findings))


def _readable(document: Any, data: bytes, path: Path | None) -> LoadedPlan | None:
    try:
        plan = plan_from_document(document)
    except MISFITS:
        return None
    return LoadedPlan(plan=plan, document=document, file_digest=sha256_digest(data), path=path)


def parse_plan(data: bytes, *, where: str, path: Path | None = None) -> LoadedPlan:
    """Parse a plan of any supported schema.

    Args:
        data: The whole file.
        where: What is being read, for error messages.
        path: Where it lies, when it lies somewhere.

    Raises:
        PlanError: With every violation, sorted.
        InvalidInputError: When the bytes are no strict JSON.
    """
    examined = examine_plan(data, where=where, path=path)
    if examined.findings or examined.loaded is None:
        raise PlanError("not a valid plan", examined.findings, where=where, hint=ANEW_HINT)
    return examined.loaded


def load_plan(path: Path) -> LoadedPlan:
    """Read a plan file and check its ``.sha256`` sidecar when there is one.

    Raises:
        PlanError: When the plan or the sidecar is not valid.
        InvalidInputError: When a file cannot be read or is no strict JSON.
    """
    data = read_bounded(path, max_bytes=MAX_PLAN_BYTES)
    check_sidecar(path, data)
    return parse_plan(data, where=str(path), path=path)


def sidecar_path(path: Path) -> Path:
    """Where the sidecar of a plan file lies."""
    return path.with_name(path.name + ".sha256")


def sidecar_bytes(path: Path, data: bytes) -> bytes:
    """The bytes of a sidecar: ``<hex>  <file name>`` and a newline."""
    return f"{bare_hex(sha256_digest(data))}  {path.name}\n".encode()


def check_sidecar(path: Path, data: bytes) -> None:
    """Compare a file's bytes with its sidecar, if there is one.

    Raises:
        PlanError: When they disagree; a CRLF checkout is recognized and explained.
    """
    sidecar = sidecar_path(path)
    if not sidecar.exists() and not sidecar.is_symlink():
        return
    try:
        found = read_bounded(sidecar, max_bytes=_MAX_SIDECAR_BYTES)
    except InvalidInputError as error:
        raise PlanError("cannot read the sidecar", got=error.problem, where=str(sidecar)) from error
    expected = sidecar_bytes(path, data)
    if found == expected:
        return
    hint = "restore the plan and its sidecar together; a frozen plan is never edited"
    if found.replace(b"\r\n", b"\n") in (
        expected,
        sidecar_bytes(path, data.replace(b"\r\n", b"\n")),
    ):
        hint = CRLF_HINT
    raise PlanError(
        "the plan's bytes do not match its sidecar",
        expected=repr(found.decode("ascii", "backslashreplace"))[:200],
        got=repr(expected.decode()),
        where=str(sidecar),
        hint=hint,
    )

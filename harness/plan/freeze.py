"""Freeze a plan: validate it, name it by its digest, and write it so that it never changes.

The manifest is written first, then the plan, then its sidecar, each durably and write-once. An
interrupted freeze leaves a prefix of that order, and running it again completes it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.canonical import read_bounded, sha256_digest, write_durable
from harness.errors import InvalidInputError, PlanError
from harness.plan.check import check_plan
from harness.plan.format import plan_digest, plan_file_bytes
from harness.plan.load import (
    MAX_PLAN_BYTES,
    LoadedPlan,
    parse_plan,
    sidecar_bytes,
    sidecar_path,
)
from harness.plan.manifest import (
    MAX_MANIFEST_BYTES,
    ManifestEntry,
    manifest_path,
    parse_manifest,
)


def freeze(document: Mapping[str, Any], path: Path, *, manifest: bytes | None) -> LoadedPlan:
    """Write a plan, its manifest and its sidecar, unless the same plan is frozen there already.

    Args:
        document: The plan; its ``digest`` is set here, whatever it was.
        path: The plan's file; the manifest goes to ``manifests/`` beside it.
        manifest: Bytes of the tensor manifest, for schemas that have one.

    Returns:
        The frozen plan.

    Raises:
        PlanError: When the plan breaks a rule (nothing is written), or another plan, manifest
            or sidecar lies there (it is left as it is).
    """
    frozen = {**document, "digest": plan_digest(document)}
    data = plan_file_bytes(frozen)
    loaded = parse_plan(data, where=str(path), path=path)
    entries = _manifest_entries(loaded, manifest)
    findings = check_plan(loaded, environment=None, support=None, manifest=entries)
    if findings:
        raise PlanError("the plan breaks rules and was not frozen", findings, where=str(path))
    files = [(path, data), (sidecar_path(path), sidecar_bytes(path, data))]
    if manifest is not None and loaded.plan.checkpoint is not None:
        reference = loaded.plan.checkpoint.manifest
        files.insert(0, (manifest_path(path.parent, reference), manifest))
    for name, content in files:
        _refuse_other(name, content, digest=loaded.plan.digest)
    for name, content in files:
        try:
            write_durable(name, content)
        except FileExistsError:
            # Somebody else froze another plan here in the meantime.
            _refuse_other(name, content, digest=loaded.plan.digest)
            raise
    return loaded


def _manifest_entries(
    loaded: LoadedPlan, manifest: bytes | None
) -> tuple[ManifestEntry, ...] | None:
    checkpoint = loaded.plan.checkpoint
    if (checkpoint is None) != (manifest is None):
        raise PlanError(
            "a plan is frozen together with its tensor manifest",
            expected="no manifest" if checkpoint is None else "the manifest's bytes",
            got="no manifest" if manifest is None else "a manifest",
        )
    if checkpoint is None or manifest is None:
        return None
    digest = sha256_digest(manifest)
    if digest != checkpoint.manifest.digest:
        raise PlanError(
            "the manifest is not the plan's",
            expected=checkpoint.manifest.digest,
            got=digest,
            where="$.checkpoint.manifest.digest",
        )
    return parse_manifest(manifest, where="manifest")


def _refuse_other(path: Path, content: bytes, *, digest: str) -> None:
    if path.is_symlink():
        got = "a symbolic link"
    elif not path.exists():
        return
    else:
        found = read_bounded(path, max_bytes=max(MAX_PLAN_BYTES, MAX_MANIFEST_BYTES))
        if found == content:
            return
        got = _described(found)
    raise PlanError(
        "another file is frozen there, and frozen files never change",
        expected=f"plan {digest}, file {sha256_digest(content)}",
        got=got,
        where=str(path),
        hint="freeze under another name, or remove the old plan and its sidecar yourself",
    )


def _described(found: bytes) -> str:
    file_digest = sha256_digest(found)
    try:
        return f"plan {parse_plan(found, where='frozen plan').plan.digest}, file {file_digest}"
    except InvalidInputError:
        return f"file {file_digest}"

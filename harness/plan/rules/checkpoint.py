"""The pinned checkpoint and its tensor manifest: names are safe, and every byte adds up."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from harness.canonical import is_digest
from harness.plan.layout import CHECKPOINT_NATIVE
from harness.plan.manifest import ManifestEntry
from harness.plan.records import Checkpoint, Finding
from harness.plan.rules.context import RuleContext, duplicate_findings

FILES = "checkpoint-files"
SOURCE = "checkpoint-source"
MANIFEST = "manifest"
_MANIFEST_PATH = "$.checkpoint.manifest"


def checkpoint_rules(context: RuleContext) -> Iterator[Finding]:
    """File names, the source, and (when the manifest was given) all sums over tensors."""
    checkpoint = context.plan.checkpoint
    if checkpoint is None:
        return
    yield from _files(checkpoint)
    yield from _source(context, checkpoint)
    num_keys = len(context.plan.adapter_data.allowed_tensor_keys)
    if checkpoint.manifest.num_tensors != num_keys:
        message = f"{checkpoint.manifest.num_tensors} tensors, but {num_keys} allowed tensor keys"
        yield Finding(path=f"{_MANIFEST_PATH}.num_tensors", rule=MANIFEST, message=message)
    if context.manifest is not None:
        yield from _totals(checkpoint, context.manifest)
        yield from _keys(context, context.manifest)
        yield from _tensor_files(checkpoint, context.manifest)
        # A state that several stages share is summed up for each of them.
        if context.plan.stages is None:
            yield from _states(context, context.manifest)


def _files(checkpoint: Checkpoint) -> Iterator[Finding]:
    names = [file.name for file in checkpoint.files]
    yield from duplicate_findings("$.checkpoint.files", FILES, names, ".name")
    for index, file in enumerate(checkpoint.files):
        path = f"$.checkpoint.files[{index}]"
        parts = file.name.split("/")
        if "\\" in file.name or any(part in ("", ".", "..") for part in parts):
            message = f"{file.name!r} is no relative path below the checkpoint's root"
            yield Finding(path=f"{path}.name", rule=FILES, message=message)
        if not is_digest(file.sha256):
            yield Finding(path=f"{path}.sha256", rule=FILES, message="not a digest")


def _source(context: RuleContext, checkpoint: Checkpoint) -> Iterator[Finding]:
    if checkpoint.source.get("kind") != "hub":
        return
    for name, expected in (
        ("repository", context.plan.model_repository),
        ("revision", context.plan.model_revision),
    ):
        got = checkpoint.source.get(name)
        if got != expected:
            message = f"{got!r} is not the plan's model, {expected!r}"
            yield Finding(path=f"$.checkpoint.source.{name}", rule=SOURCE, message=message)


def _totals(checkpoint: Checkpoint, manifest: Sequence[ManifestEntry]) -> Iterator[Finding]:
    reference = checkpoint.manifest
    for name, stated, actual in (
        ("num_tensors", reference.num_tensors, len(manifest)),
        ("source_bytes", reference.source_bytes, sum(row.source_bytes for row in manifest)),
        ("expected_bytes", reference.expected_bytes, sum(row.expected_bytes for row in manifest)),
    ):
        if stated != actual:
            message = f"states {stated}, the manifest's rows give {actual}"
            yield Finding(path=f"{_MANIFEST_PATH}.{name}", rule=MANIFEST, message=message)


def _keys(context: RuleContext, manifest: Sequence[ManifestEntry]) -> Iterator[Finding]:
    path = "$.adapter_data.allowed_tensor_keys"
    allowed = set(context.plan.adapter_data.allowed_tensor_keys)
    listed = {row.key for row in manifest}
    for key in sorted(allowed - listed):
        yield Finding(path=path, rule=MANIFEST, message=f"{key!r} is not in the manifest")
    for key in sorted(listed - allowed):
        yield Finding(path=path, rule=MANIFEST, message=f"lacks {key!r} of the manifest")


def _tensor_files(checkpoint: Checkpoint, manifest: Sequence[ManifestEntry]) -> Iterator[Finding]:
    sizes = {file.name: file.size_bytes for file in checkpoint.files}
    sums: defaultdict[str, int] = defaultdict(int)
    for row in manifest:
        sums[row.file] += row.source_bytes
    for name, total in sorted(sums.items()):
        if name not in sizes:
            message = f"the manifest's file {name!r} is not pinned"
            yield Finding(path="$.checkpoint.files", rule=FILES, message=message)
        elif total > sizes[name]:
            message = f"{name!r} has {sizes[name]} bytes, its tensors have {total}"
            yield Finding(path="$.checkpoint.files", rule=FILES, message=message)


def _states(context: RuleContext, manifest: Sequence[ManifestEntry]) -> Iterator[Finding]:
    source_bytes: defaultdict[str, int] = defaultdict(int)
    resident_bytes: defaultdict[str, int] = defaultdict(int)
    for row in manifest:
        source_bytes[row.logical_state_id] += row.source_bytes
        resident_bytes[row.logical_state_id] += row.expected_bytes
    for name in sorted(source_bytes):
        state = context.states.get(name)
        if state is None or state.backing_source_id is None:
            message = f"tensors of the manifest belong to {name!r}, no state with a backing source"
            yield Finding(path="$.logical_state_units", rule=MANIFEST, message=message)
    for index, item in enumerate(context.plan.materializations):
        state = context.states.get(item.logical_state_id)
        if state is None or state.semantic_class != "immutable_source":
            continue
        if item.representation == CHECKPOINT_NATIVE:
            actual, what = source_bytes[state.id], "source bytes"
        elif item.role == "required_residency":
            actual, what = resident_bytes[state.id], "expected bytes"
        else:
            continue
        if item.expected_bytes != actual:
            message = f"{item.id!r} has {item.expected_bytes} bytes, its tensors' {what} {actual}"
            yield Finding(
                path=f"$.materializations[{index}].expected_bytes", rule=MANIFEST, message=message
            )

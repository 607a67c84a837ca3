"""A plan as text for a person: what goes where, what runs, and what decides.

All text of the plan is escaped, since a terminal would obey what it holds.
"""

from collections.abc import Iterator, Sequence

from harness.plan.load import LoadedPlan
from harness.plan.manifest import ManifestEntry
from harness.plan.records import Materialization, Plan, Workload
from harness.plan.rules.memory import bytes_by_memory
from harness.plan.state_bytes import LABEL, bytes_by_state

_MAX_LISTED = 8


def printable(text: str) -> str:
    """Text with every character that does not print (control, direction) escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def show_plan(loaded: LoadedPlan, manifest: Sequence[ManifestEntry] | None = None) -> str:
    """Summarize a plan in lines of text, with exact bytes per memory.

    Args:
        loaded: The plan.
        manifest: Its tensor manifest, for the bytes of each state; ``None`` where it is not there.
    """
    plan = loaded.plan
    lines = [
        f"plan {plan.plan_version} ({plan.schema})",
        f"  digest {plan.digest}",
        f"  file   {loaded.file_digest}",
        f"  model  {plan.model_repository} at {plan.model_revision}",
        *_resources(plan),
        *_states(plan),
        *_materializations(plan.materializations),
        *_memories(plan),
        *_execution(plan),
        *_stages(plan),
        *_tensors(plan),
        *state_lines(manifest or ()),
        *(_workload(plan.workload) if plan.workload is not None else ()),
        *_conditions(plan),
        *_checks(plan),
    ]
    return "\n".join(printable(line) for line in lines) + "\n"


def _resources(plan: Plan) -> Iterator[str]:
    yield f"resources of swarm {plan.resources.swarm_id}"
    for node in plan.resources.nodes:
        for unit in node.compute_units:
            uuid = f", UUID {unit.device_uuid}" if unit.device_uuid else ""
            reach = ", ".join(unit.memory_resources)
            yield f"  {node.id}: {unit.id} ({unit.kind}{uuid}) with {reach}"
    for link in plan.resources.links:
        yield f"  path {link.id} ({link.kind}): {link.source} -> {link.target}"


def _states(plan: Plan) -> Iterator[str]:
    owners = {item.logical_state_id: item for item in plan.authorities}
    yield "states"
    for state in plan.logical_state_units:
        source = state.backing_source_id or ", ".join(state.reconstruction_inputs or ())
        origin = f" from {source}" if source else ""
        owner = owners.get(state.id)
        lineage = f", owned by {owner.materialization_id} as {owner.lineage}" if owner else ""
        yield f"  {state.id}: {state.semantic_class}{origin}{lineage}"


def _materializations(items: Sequence[Materialization]) -> Iterator[str]:
    yield "materializations, in order of realization"
    for item in items:
        path = f" by {item.path_id}" if item.path_id else ""
        kind = f"{item.requirement} {item.persistence} {item.role}"
        yield f"  {item.id}: {item.logical_state_id} as {item.representation}"
        yield f"    {item.expected_bytes:,} bytes in {item.memory_resource_id}{path} ({kind})"


def _memories(plan: Plan) -> Iterator[str]:
    realized = [
        item for item in plan.materializations if item.requirement == "required" or item.realize
    ]
    peak = bytes_by_memory(realized)
    persistent = bytes_by_memory(item for item in realized if item.persistence == "persistent")
    yield "bytes per memory"
    for node in plan.resources.nodes:
        for memory in node.memory_resources:
            yield (
                f"  {memory.id} ({memory.kind}): {persistent[memory.id]:,} persistent, "
                f"{peak[memory.id]:,} at the peak, capacity {memory.capacity_bytes:,}"
            )
    for item in plan.forbidden_persistent_materializations:
        yield f"  no persistent copy of {item.logical_state_id} in {item.memory_resource_id}"


def _execution(plan: Plan) -> Iterator[str]:
    yield "execution"
    for item in plan.execution:
        needs = ", ".join(required.logical_state_id for required in item.required_state)
        yield f"  {item.id}: {item.strategy_unit} on {item.compute_unit_id}, needs {needs}"


def _stages(plan: Plan) -> Iterator[str]:
    if plan.stages is None:
        return
    yield "stages, in the chain's order"
    for stage in plan.stages:
        layers = f"layers [{stage.start_layer}, {stage.end_layer})"
        yield f"  {stage.id}: {layers} by {stage.execution_id} on {stage.compute_unit_id}"


def _tensors(plan: Plan) -> Iterator[str]:
    spec = plan.adapter_data.spec
    yield (
        f"tensors: {len(plan.adapter_data.allowed_tensor_keys):,} "
        f"of layers [{spec.start_layer}, {spec.end_layer})"
    )
    if plan.checkpoint is not None:
        reference = plan.checkpoint.manifest
        yield f"  {reference.source_bytes:,} bytes stored, {reference.expected_bytes:,} resident"
        yield f"  manifest {reference.digest}"
        for file in plan.checkpoint.files[:_MAX_LISTED]:
            yield f"  file {file.name}: {file.size_bytes:,} bytes, {file.sha256}"
        more = len(plan.checkpoint.files) - _MAX_LISTED
        if more > 0:
            yield f"  and {more} more files"


def state_lines(manifest: Sequence[ManifestEntry]) -> Iterator[str]:
    """Stored and resident bytes of each state, as the manifest adds up to them."""
    for state in bytes_by_state(manifest):
        yield (
            f"  {state.logical_state_id}: {state.num_tensors:,} tensors, "
            f"{state.source_bytes:,} bytes stored, {state.resident_bytes:,} resident ({LABEL})"
        )


def _workload(workload: Workload) -> Iterator[str]:
    yield "workload"
    ids = ", ".join(map(str, workload.prompt_token_ids[:_MAX_LISTED]))
    dots = ", ..." if len(workload.prompt_token_ids) > _MAX_LISTED else ""
    if workload.prompt_text is not None:
        yield f"  prompt {workload.prompt_text!r}"
    yield f"  {len(workload.prompt_token_ids)} prompt tokens ({ids}{dots})"
    yield (
        f"  chunks of {_chunks(workload)}, {workload.decode_steps} decode steps, "
        f"{workload.sampling}, {workload.max_positions} positions{_pages(workload)}"
    )
    yield f"  {workload.repetitions} repetitions in {workload.fresh_realizations} realizations"


def _chunks(workload: Workload) -> str:
    if workload.prefill_partition is None:
        return str(workload.chunk_rows)
    rows = [str(end - start) for start, end in workload.prefill_partition[:_MAX_LISTED]]
    more = ", ..." if len(workload.prefill_partition) > _MAX_LISTED else ""
    return ", ".join(rows) + more


def _pages(workload: Workload) -> str:
    return "" if workload.page_size is None else f" in pages of {workload.page_size}"


def _conditions(plan: Plan) -> Iterator[str]:
    if plan.determinism is not None:
        item = plan.determinism
        yield (
            f"conditions: {item.dtype}, {item.num_threads} threads, kernels {item.kernel_set}, "
            f"deterministic {item.deterministic_algorithms}, "
            f"batch-invariant {item.batch_invariant}"
        )
    if plan.reference_fixture is not None:
        fixture = plan.reference_fixture
        yield f"reference: {', '.join(fixture.outputs)} by {fixture.loader} in {fixture.dtype}"


def _checks(plan: Plan) -> Iterator[str]:
    if plan.checks is not None:
        for title, checks in (
            ("decide the verdict", plan.checks.acceptance),
            ("are reported", plan.checks.telemetry),
        ):
            yield f"checks that {title}"
            for check in checks:
                limit = "" if check.limit is None else f" (limit {check.limit})"
                yield f"  {check.id}{limit}"
        for each in plan.checks.comparison or ():
            yield f"comparison, {each.kind}: {each.metric} of {each.tensors}, limit {each.limit:g}"
    if plan.scope is not None:
        yield from (f"proves: {text}" for text in plan.scope.proves)
        yield from (f"does not prove: {text}" for text in plan.scope.does_not_prove)

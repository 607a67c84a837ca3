"""Derive a whole plan, with exact bytes, from records: a pure function.

Inputs are a checkpoint's census, an adapter's layout, an environment's resources and what a
person decides (workload, determinism, checks, scope). Opens no file and knows no model family.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.canonical import sha256_digest
from harness.errors import CheckpointError, InvalidInputError, PlanError
from harness.plan import derive_parts as parts
from harness.plan.balance import balanced_cuts, edges_of, range_bytes
from harness.plan.check import check_plan
from harness.plan.derive_request import DeriveRequest
from harness.plan.derive_resources import Device, Placement, plan_resources
from harness.plan.documents import plan_to_document
from harness.plan.format import NATIVE_SCHEMA, plan_digest, plan_file_bytes
from harness.plan.layout import (
    CHECKPOINT_WINDOW,
    CensusEntry,
    Form,
    StateDesign,
    TensorSpec,
)
from harness.plan.load import parse_plan
from harness.plan.manifest import ManifestEntry, manifest_bytes
from harness.plan.nodes import on_node, prefixed
from harness.plan.records import (
    RECORDED,
    AdapterData,
    BackingSource,
    Checkpoint,
    Link,
    ManifestReference,
    Materialization,
    MemoryExpectations,
    ModelRange,
    Plan,
    Resources,
    Stage,
)

__all__ = ["DeriveRequest", "derive"]


def derive(request: DeriveRequest) -> tuple[dict[str, Any], bytes]:
    """Compute the plan document (with its digest) and the bytes of its tensor manifest.

    Raises:
        CheckpointError: When the checkpoint lacks tensors, with every missing key.
        ResourceError: When the plan does not fit the environment's memories.
        PlanError: When the layout or the choices contradict the rules, with every finding.
    """
    layout_request = request.layout_request
    if request.device_memory_id == request.host_memory_id:
        layout_request = replace(layout_request, staging="none", staging_window_bytes=None)
    request = replace(request, layout_request=layout_request)
    layout = request.layout
    designs = layout.states(layout_request)
    census = _needed(request)
    entries = _manifest(request, designs, census)
    pieces = _pieces(request, designs, census)
    manifest = manifest_bytes(entries)
    checkpoint = Checkpoint(
        source=request.checkpoint_source,
        files=request.checkpoint_files,
        manifest=ManifestReference(
            digest=sha256_digest(manifest),
            num_tensors=len(entries),
            source_bytes=sum(entry.source_bytes for entry in entries),
            expected_bytes=sum(entry.expected_bytes for entry in entries),
        ),
    )
    keys = tuple(entry.key for entry in entries)
    document = plan_to_document(_plan(request, designs, pieces, checkpoint, keys))
    document["digest"] = plan_digest(document)
    loaded = parse_plan(plan_file_bytes(document), where="derived plan")
    findings = check_plan(loaded, environment=None, support=layout, manifest=entries)
    if findings:
        raise PlanError("the derived plan breaks rules", findings)
    return document, manifest


def _needed(request: DeriveRequest) -> tuple[CensusEntry, ...]:
    wanted = request.layout_request
    keys = request.layout.tensor_keys(wanted.config, wanted.spec, wanted.representations)
    found = {entry.key: entry for entry in request.census}
    missing = sorted(set(keys) - found.keys())
    if missing:
        raise CheckpointError(
            "the checkpoint lacks tensors that the model needs",
            expected=f"{len(keys)} tensors",
            got="missing: " + ", ".join(missing),
            where=request.model_repository,
            hint="check that the checkpoint and the model's configuration belong together",
        )
    # What nobody needs may still contradict the configuration: only the family can tell.
    request.layout.account(wanted.config, wanted.spec, request.census, wanted.representations)
    return tuple(found[key] for key in sorted(keys))


def _manifest(
    request: DeriveRequest, designs: Sequence[StateDesign], census: Sequence[CensusEntry]
) -> list[ManifestEntry]:
    owners = {key: design.id for design in designs for key in design.tensor_keys}
    claimed = Counter(key for design in designs for key in design.tensor_keys)
    wrong = {entry.key for entry in census if claimed[entry.key] != 1} | (
        claimed.keys() - {entry.key for entry in census}
    )
    if wrong:
        raise PlanError(
            "the layout does not give each tensor to exactly one state",
            got=", ".join(sorted(wrong)),
        )
    expected = request.layout.expected_bytes_by_key(request.layout_request, census)
    return [
        ManifestEntry(
            key=entry.key,
            file=entry.file,
            dtype=entry.dtype,
            shape=entry.shape,
            logical_state_id=owners[entry.key],
            source_bytes=entry.source_bytes,
            expected_bytes=expected[entry.key],
            sha256=entry.sha256,
            digest_source=entry.digest_source,
        )
        for entry in census
    ]


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """What one process realizes: the whole range, or that of a stage."""

    request: DeriveRequest
    designs: Sequence[StateDesign]
    tensors: Mapping[Form, Sequence[TensorSpec]]
    stage: Stage | None

    @property
    def stage_id(self) -> str | None:
        return None if self.stage is None else self.stage.id

    @property
    def device(self) -> Device:
        return Device(
            compute_unit_id=self.request.compute_unit_id,
            device_memory_id=self.request.device_memory_id,
        )

    def materializations(self) -> tuple[Materialization, ...]:
        return tuple(
            parts.materializations(self.request, self.designs, self.tensors, self.stage_id)
        )


def _pieces(
    request: DeriveRequest, designs: Sequence[StateDesign], census: Sequence[CensusEntry]
) -> tuple[_Piece, ...]:
    if request.num_stages is None:
        return (_piece(request, designs, census, None),)
    found = []
    for number, (stage, spec) in enumerate(_stages(request, request.num_stages)):
        part = replace(
            _placed(request, stage.id),
            layout_request=replace(request.layout_request, spec=spec),
            num_stages=None,
        )
        if request.stage_devices is not None:
            part = replace(part, **vars(request.stage_devices[number]))
            stage = replace(stage, compute_unit_id=part.compute_unit_id)
        found.append(_piece(part, request.layout.states(part.layout_request), census, stage))
    return tuple(found)


def _placed(request: DeriveRequest, stage_id: str) -> DeriveRequest:
    """The request of one stage: on a node of its own, where each stage has one."""
    if not request.has_nodes:
        return request
    return replace(
        request,
        node=stage_id,
        resources=prefixed(request.resources, stage_id),
        compute_unit_id=on_node(stage_id, request.compute_unit_id),
        host_memory_id=on_node(stage_id, request.host_memory_id),
        device_memory_id=on_node(stage_id, request.device_memory_id),
    )


def _piece(
    request: DeriveRequest,
    designs: Sequence[StateDesign],
    census: Sequence[CensusEntry],
    stage: Stage | None,
) -> _Piece:
    tensors = {
        form: tuple(request.layout.tensors(request.layout_request, *form, census))
        for form in sorted(set(parts.forms(designs)))
    }
    return _Piece(request=request, designs=designs, tensors=tensors, stage=stage)


def _stages(request: DeriveRequest, num_stages: int) -> Iterator[tuple[Stage, ModelRange]]:
    """Stages with their ranges, of bytes as even as can be."""
    wanted = request.layout_request
    if wanted.workload.decode_mode == RECORDED:
        raise InvalidInputError(
            "steps of a plan with stages are not recorded",
            expected="no decode_mode, so that every step is run anew",
            got=RECORDED,
            where="workload.decode_mode",
        )
    whole = wanted.spec
    cuts = balanced_cuts(range_bytes(request.layout, wanted), num_stages)
    for number, (start, end) in enumerate(edges_of(cuts, whole.start_layer, whole.end_layer)):
        stage_id = f"stage-{number}"
        yield (
            Stage(
                id=stage_id,
                start_layer=start,
                end_layer=end,
                compute_unit_id=_placed(request, stage_id).compute_unit_id,
                execution_id=parts.execution_id(stage_id),
            ),
            replace(
                whole,
                start_layer=start,
                end_layer=end,
                owns_embeddings=whole.owns_embeddings and number == 0,
                owns_final_norm_head=whole.owns_final_norm_head and number == num_stages - 1,
            ),
        )


def _plan(
    request: DeriveRequest,
    designs: Sequence[StateDesign],
    pieces: Sequence[_Piece],
    checkpoint: Checkpoint,
    tensor_keys: tuple[str, ...],
) -> Plan:
    wanted = request.layout_request
    planned = tuple(item for piece in pieces for item in piece.materializations())
    stages = tuple(piece.stage for piece in pieces if piece.stage is not None)
    window = any(item.representation == CHECKPOINT_WINDOW for item in planned)
    return Plan(
        schema=NATIVE_SCHEMA,
        plan_version=request.plan_version,
        digest="",
        model_repository=request.model_repository,
        model_revision=request.model_revision,
        resources=_resources(request, pieces, stages),
        logical_state_units=tuple(parts.state_unit(design) for design in designs),
        materializations=planned,
        authorities=tuple(parts.authorities(planned)),
        execution=tuple(
            parts.execution(piece.request, piece.designs, piece.stage_id) for piece in pieces
        ),
        forbidden_persistent_materializations=tuple(
            item
            for group in _on_nodes(request, pieces)
            for item in parts.forbidden(group[0].request, designs)
        ),
        memory_expectations=MemoryExpectations(
            persistent_optional_bytes=0,
            unplanned_persistent_bytes=0,
            unexplained_persistent_host_mirror_bytes=0,
        ),
        adapter_data=AdapterData(
            family=request.layout.family,
            config=wanted.config,
            spec=wanted.spec,
            allowed_tensor_keys=tensor_keys,
        ),
        checkpoint=checkpoint,
        workload=wanted.workload,
        reference_fixture=request.reference_fixture,
        determinism=wanted.determinism,
        checks=request.checks,
        timeouts=request.timeouts,
        memory_allowances=replace(
            request.memory_allowances,
            staging_window_bytes=wanted.staging_window_bytes if window else None,
        ),
        eviction_policy=wanted.eviction_policy,
        scope=request.scope,
        stages=stages or None,
    )


def _on_nodes(request: DeriveRequest, pieces: Sequence[_Piece]) -> list[Sequence[_Piece]]:
    """The pieces of each node."""
    return [[piece] for piece in pieces] if request.has_nodes else [pieces]


def _resources(
    request: DeriveRequest, pieces: Sequence[_Piece], stages: Sequence[Stage]
) -> Resources:
    source = BackingSource(
        id=parts.BACKING_SOURCE_ID,
        kind="checkpoint",
        repository=request.model_repository,
        revision=request.model_revision,
    )
    groups = _on_nodes(request, pieces)
    has_head = request.layout_request.spec.owns_final_norm_head
    between = parts.stage_links(stages, has_head=has_head) if stages else ()
    return replace(
        request.resources,
        nodes=tuple(node for group in groups for node in _needed_by(group).nodes),
        backing_sources=(source,),
        links=(*_paths(pieces), *between),
    )


def _needed_by(pieces: Sequence[_Piece]) -> Resources:
    """The least of one node that holds what is realized there."""
    request = pieces[0].request
    placement = Placement(
        devices=tuple(piece.device for piece in pieces),
        host_memory_id=request.host_memory_id,
        pin_device=request.pin_device,
        unplanned_host_bytes=request.memory_allowances.unplanned_host_bytes,
        unplanned_device_bytes=request.memory_allowances.unplanned_device_bytes or 0,
    )
    copies = [
        (item, piece.tensors[item.logical_state_id, item.representation])
        for piece in pieces
        for item in piece.materializations()
    ]
    return plan_resources(request.resources, placement, copies)


def _paths(pieces: Sequence[_Piece]) -> Iterator[Link]:
    """Every path of every piece, once."""
    found = (link for piece in pieces for link in parts.links(piece.request, piece.stage_id))
    yield from {link.id: link for link in found}.values()

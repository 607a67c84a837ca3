"""The parts of a derived plan that follow from an adapter's designs: copies, paths, execution.

Ids follow one rule: state ``state.X`` is staged as ``mat.X.stage`` and lives as ``mat.X.resident``
(or ``mat.X.host``, where its place is system RAM).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import cast

from harness.errors import PlanError
from harness.plan.derive_request import DeriveRequest
from harness.plan.layout import Form, StateDesign, TensorSpec
from harness.plan.records import (
    PROCESS_BOUNDARY,
    TOKEN_RETURN,
    Authority,
    Execution,
    ForbiddenMaterialization,
    Link,
    Materialization,
    RequiredState,
    Role,
    Stage,
    StateUnit,
)
from harness.plan.rules.authority import planned_lineage

BACKING_SOURCE_ID = "checkpoint"
EXECUTION_ID = "exec.model"
READ_PATH_ID = "checkpoint-to-ram"
DEVICE_PATH_ID = "ram-to-device"
STRAIGHT_PATH_ID = "checkpoint-to-device"
"""Where nothing is staged, and what is read goes to the device at once."""
_STATE_PREFIX = "state."
_STEMS = {"replay-baseline": "replay", "reference-fixture": "fixture"}
"""Test states whose materializations have a shorter name than the state."""


def forms(designs: Sequence[StateDesign]) -> Iterator[Form]:
    """Every form of a state that is planned."""
    for design in designs:
        yield design.id, design.representation
        if design.staging_representation is not None:
            yield design.id, design.staging_representation


def _stem(state_id: str) -> str:
    name = state_id.removeprefix(_STATE_PREFIX)
    return _STEMS.get(name, name)


def _prefix(stage_id: str | None) -> str:
    return "" if stage_id is None else f"{stage_id}."


def _path(request: DeriveRequest, path_id: str) -> str:
    """A path between memories, of the node that has them."""
    return _prefix(request.node) + path_id


def materializations(
    request: DeriveRequest,
    designs: Sequence[StateDesign],
    tensors: Mapping[Form, Sequence[TensorSpec]],
    stage_id: str | None = None,
) -> Iterator[Materialization]:
    """All staging first, then every persistent copy, each in the layout's order.

    Args:
        request: What is derived.
        designs: The adapter's states.
        tensors: Tensors of every form.
        stage_id: The stage that realizes them, if the plan has stages; begins their ids.
    """
    for design in designs:
        form = design.staging_representation
        if form is not None:
            yield Materialization(
                id=f"{_prefix(stage_id)}mat.{_stem(design.id)}.stage",
                logical_state_id=design.id,
                representation=form,
                memory_resource_id=request.host_memory_id,
                path_id=_path(request, READ_PATH_ID),
                expected_bytes=_num_bytes(tensors[design.id, form]),
                role="staging",
                requirement="required",
                persistence="transient",
                stage_id=stage_id,
            )
    for design in designs:
        memory_id = memory_of(request, design)
        is_on_host = memory_id == request.host_memory_id
        read = _path(request, READ_PATH_ID)
        path_id = read if is_on_host else device_path_id(request, stage_id)
        yield Materialization(
            id=f"{_prefix(stage_id)}mat.{_stem(design.id)}."
            f"{'resident' if design.on_device else 'host'}",
            logical_state_id=design.id,
            representation=design.representation,
            memory_resource_id=memory_id,
            path_id=path_id if design.semantic_class == "immutable_source" else None,
            expected_bytes=_num_bytes(tensors[design.id, design.representation]),
            # A role that is none is refused with its place by the schema, once all is derived.
            role=cast(Role, design.role),
            requirement="required",
            persistence="persistent",
            stage_id=stage_id,
        )


def _num_bytes(specs: Sequence[TensorSpec]) -> int:
    return sum(spec.num_bytes for spec in specs)


def device_path_id(request: DeriveRequest, stage_id: str | None) -> str:
    """Id of the path to the device's own memory: one for all, or one for each stage's device."""
    name = DEVICE_PATH_ID if _stages_state(request) else STRAIGHT_PATH_ID
    return _path(request, name) if request.stage_devices is None else _prefix(stage_id) + name


def _stages_state(request: DeriveRequest) -> bool:
    return request.layout_request.staging != "none"


def links(request: DeriveRequest, stage_id: str | None = None) -> Iterator[Link]:
    """Paths: from the checkpoint into the host's memory, and on to the device's own."""
    yield Link(
        id=_path(request, READ_PATH_ID),
        kind="bounded-read",
        source=BACKING_SOURCE_ID,
        target=request.host_memory_id,
    )
    if request.device_memory_id != request.host_memory_id:
        stages = _stages_state(request)
        yield Link(
            id=device_path_id(request, stage_id),
            kind="host-to-device" if stages else "bounded-read",
            source=request.host_memory_id if stages else BACKING_SOURCE_ID,
            target=request.device_memory_id,
        )


def state_unit(design: StateDesign) -> StateUnit:
    """The logical state of a design."""
    return StateUnit(
        id=design.id,
        semantic_class=design.semantic_class,
        backing_source_id=BACKING_SOURCE_ID if design.from_checkpoint else None,
        reconstruction_inputs=design.reconstruction_inputs,
    )


def stage_links(stages: Sequence[Stage], *, has_head: bool) -> Iterator[Link]:
    """From each stage to the next, and, where tokens are chosen, from the last to the first."""
    for one, other in pairwise(stages):
        name = f"{one.id}-to-{other.id}"
        yield Link(id=name, kind=PROCESS_BOUNDARY, source=one.id, target=other.id)
    if has_head:
        last, first = stages[-1].id, stages[0].id
        yield Link(id=f"token-to-{first}", kind=TOKEN_RETURN, source=last, target=first)


def execution_id(stage_id: str | None) -> str:
    """Id of the execution of a stage, or of the whole range."""
    return f"{_prefix(stage_id)}{EXECUTION_ID}"


def execution(
    request: DeriveRequest, designs: Sequence[StateDesign], stage_id: str | None = None
) -> Execution:
    """One execution, from every state that the designs say it reads.

    Raises:
        PlanError: When the layout supports several and none was chosen.
    """
    units = request.layout.strategy_units
    chosen = request.strategy_unit or (next(iter(units)) if len(units) == 1 else None)
    if chosen is None:
        raise PlanError(
            "the adapter supports several executions",
            expected="strategy_unit, one of " + ", ".join(sorted(units)),
        )
    return Execution(
        id=execution_id(stage_id),
        stage_id=stage_id,
        strategy_unit=chosen,
        compute_unit_id=request.compute_unit_id,
        required_state=tuple(
            RequiredState(
                logical_state_id=design.id,
                representations=(design.representation,),
                memory_resources=(memory_of(request, design),),
            )
            for design in designs
            if design.required_by_execution
        ),
    )


def authorities(items: Sequence[Materialization]) -> Iterator[Authority]:
    """An authority for each mutable materialization, with the lineage its owner will mint."""
    for item in items:
        if item.role == "mutable_authority":
            yield Authority(
                logical_state_id=item.logical_state_id,
                materialization_id=item.id,
                lineage=planned_lineage(item.logical_state_id),
            )


def forbidden(
    request: DeriveRequest, designs: Sequence[StateDesign]
) -> Iterator[ForbiddenMaterialization]:
    """Host copies that must not outlive their staging."""
    for design in designs:
        if design.forbidden_on_host and memory_of(request, design) != request.host_memory_id:
            yield ForbiddenMaterialization(
                logical_state_id=design.id, memory_resource_id=request.host_memory_id
            )


def memory_of(request: DeriveRequest, design: StateDesign) -> str:
    """Memory of a design's persistent copy."""
    return request.device_memory_id if design.on_device else request.host_memory_id

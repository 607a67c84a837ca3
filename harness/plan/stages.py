"""Each stage of a plan, seen as a plan of its own: what one process of a chain realizes.

A view has the stage's range, tensors, copies, owner and execution, and the digest of the whole
plan. Whoever realizes or judges one process looks at its view, and so knows nothing of stages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from harness.errors import InvalidInputError
from harness.plan.manifest import ManifestEntry
from harness.plan.recipe import fixture_outputs
from harness.plan.records import (
    Checkpoint,
    ManifestReference,
    ModelRange,
    Plan,
    Resources,
    Stage,
)


@runtime_checkable
class RangeKeys(Protocol):
    """Tells the checkpoint keys of a range; every adapter's layout is one."""

    def tensor_keys(
        self,
        config: Mapping[str, Any],
        spec: ModelRange,
        representations: Mapping[str, str] | None = None,
    ) -> tuple[str, ...]:
        """Checkpoint keys that the range needs in these forms, or the family's own, sorted."""


@dataclass(frozen=True, kw_only=True)
class StageView:
    """One stage of a plan."""

    number: int
    """Place in the chain, from 0."""
    stage: Stage
    plan: Plan
    """The whole plan, cut down to this stage."""
    manifest: tuple[ManifestEntry, ...] | None
    """Tensors that this stage reads; ``None`` where the plan's are not known."""


def stage_views(
    plan: Plan, keys: RangeKeys | None, manifest: Sequence[ManifestEntry] | None
) -> tuple[StageView, ...]:
    """Every stage of a plan, in order; none where it has no stages.

    Args:
        plan: A whole plan, which may break rules.
        keys: Tells the tensors of each stage; without it all of them are taken for each one's.
        manifest: Of the whole plan, or ``None``.
    """
    return tuple(
        _view(plan, number, stage, keys, manifest) for number, stage in enumerate(plan.stages or ())
    )


def stage_view(
    plan: Plan, number: int, keys: RangeKeys, manifest: Sequence[ManifestEntry]
) -> tuple[Plan, tuple[ManifestEntry, ...]]:
    """One stage's plan and the tensors that it reads.

    Raises:
        InvalidInputError: When the plan has no such stage.
    """
    stages = plan.stages or ()
    if not 0 <= number < len(stages):
        raise InvalidInputError(
            "the plan has no such stage",
            expected=f"0 to {len(stages) - 1}" if stages else "a plan with stages",
            got=str(number),
        )
    view = _view(plan, number, stages[number], keys, manifest)
    return view.plan, view.manifest or ()


def stage_range(plan: Plan, number: int) -> ModelRange:
    """The range of one stage: its layers, and the ends that lie beside them."""
    stages, whole = plan.stages or (), plan.adapter_data.spec
    return replace(
        whole,
        start_layer=stages[number].start_layer,
        end_layer=stages[number].end_layer,
        owns_embeddings=whole.owns_embeddings and number == 0,
        owns_final_norm_head=whole.owns_final_norm_head and number == len(stages) - 1,
    )


def _view(
    plan: Plan,
    number: int,
    stage: Stage,
    keys: RangeKeys | None,
    manifest: Sequence[ManifestEntry] | None,
) -> StageView:
    items = tuple(item for item in plan.materializations if item.stage_id == stage.id)
    own = {item.id for item in items}
    spec = stage_range(plan, number)
    wanted = set(plan.adapter_data.allowed_tensor_keys)
    if keys is not None:
        forms = {
            item.logical_state_id: item.representation
            for item in items
            if item.persistence == "persistent" and item.requirement == "required"
        }
        wanted &= set(keys.tensor_keys(plan.adapter_data.config, spec, forms))
    entries = None
    if manifest is not None:
        entries = tuple(entry for entry in manifest if entry.key in wanted)
    recipe = plan.reference_fixture
    return StageView(
        number=number,
        stage=stage,
        manifest=entries,
        plan=replace(
            plan,
            resources=_resources(plan, stage, {item.memory_resource_id for item in items}),
            materializations=items,
            authorities=tuple(a for a in plan.authorities if a.materialization_id in own),
            execution=tuple(e for e in plan.execution if e.stage_id == stage.id),
            adapter_data=replace(
                plan.adapter_data,
                spec=spec,
                allowed_tensor_keys=tuple(
                    key for key in plan.adapter_data.allowed_tensor_keys if key in wanted
                ),
            ),
            checkpoint=_checkpoint(plan.checkpoint, entries),
            reference_fixture=recipe and replace(recipe, outputs=fixture_outputs(spec)),
            stages=None,
        ),
    )


def _checkpoint(
    checkpoint: Checkpoint | None, entries: Sequence[ManifestEntry] | None
) -> Checkpoint | None:
    if checkpoint is None or entries is None:
        return checkpoint
    reference = ManifestReference(
        digest=checkpoint.manifest.digest,
        num_tensors=len(entries),
        source_bytes=sum(entry.source_bytes for entry in entries),
        expected_bytes=sum(entry.expected_bytes for entry in entries),
    )
    return replace(checkpoint, manifest=reference)


def _resources(plan: Plan, stage: Stage, used: set[str]) -> Resources:
    """The stage's own unit, and the memories that it reaches or fills."""
    nodes = []
    for node in plan.resources.nodes:
        units = tuple(unit for unit in node.compute_units if unit.id == stage.compute_unit_id)
        reached = used | {name for unit in units for name in unit.memory_resources}
        memories = tuple(memory for memory in node.memory_resources if memory.id in reached)
        if units or memories:
            nodes.append(replace(node, compute_units=units, memory_resources=memories))
    return replace(plan.resources, nodes=tuple(nodes))

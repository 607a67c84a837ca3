"""What a frozen plan asks of its family's layout. Knows no family."""

from collections.abc import Sequence

from harness.errors import InvalidInputError
from harness.plan.layout import (
    CHECKPOINT_WINDOW,
    AdapterLayout,
    CensusEntry,
    Form,
    LayoutRequest,
    TensorSpec,
)
from harness.plan.manifest import ManifestEntry
from harness.plan.records import Plan


def layout_request(plan: Plan) -> LayoutRequest:
    """Read the layout's request back out of a plan.

    Raises:
        InvalidInputError: When the plan's schema carries no workload to realize.
    """
    if plan.determinism is None or plan.workload is None or plan.memory_allowances is None:
        raise InvalidInputError(
            "this plan cannot be realized",
            expected="a plan of schema harness.plan/1",
            got=plan.schema,
            hint="published plans can be checked and reconciled, not run",
        )
    forms = {
        intent.representation
        for intent in plan.materializations
        if intent.persistence == "transient"
    }
    # Where some state is staged whole, what is not staged may still come through a window.
    through_window = "streaming" if forms else "none"
    staging = through_window if forms <= {CHECKPOINT_WINDOW} else "whole"
    return LayoutRequest(
        config=plan.adapter_data.config,
        spec=plan.adapter_data.spec,
        determinism=plan.determinism,
        workload=plan.workload,
        staging=staging,
        staging_window_bytes=plan.memory_allowances.staging_window_bytes,
        eviction_policy=plan.eviction_policy,
        representations={
            intent.logical_state_id: intent.representation
            for intent in plan.materializations
            if intent.persistence == "persistent" and intent.requirement == "required"
        },
    )


def census_of(manifest: Sequence[ManifestEntry]) -> tuple[CensusEntry, ...]:
    """The manifest's tensors as the census a layout's arithmetic takes."""
    return tuple(
        CensusEntry(
            key=entry.key,
            dtype=entry.dtype,
            shape=tuple(entry.shape),
            file=entry.file,
            source_bytes=entry.source_bytes,
            sha256=entry.sha256,
            digest_source=entry.digest_source,
        )
        for entry in manifest
    )


def planned_tensors(
    plan: Plan, layout: AdapterLayout, manifest: Sequence[ManifestEntry]
) -> dict[Form, tuple[TensorSpec, ...]]:
    """Exact tensors of every form of a state that the plan names."""
    request, census = layout_request(plan), census_of(manifest)
    forms = dict.fromkeys(
        (intent.logical_state_id, intent.representation) for intent in plan.materializations
    )
    return {form: tuple(layout.tensors(request, *form, census)) for form in forms}

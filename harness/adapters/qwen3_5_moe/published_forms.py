"""The published representations of this family, as data, and the figures that follow from a plan.

The published plan counts its transient bytes with 57 planned keys left unfetched: the input scales
of the shared experts. They are named here; a run of this project fetches what it plans. Imports no
torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.plan.manifest import ManifestEntry
from harness.plan.records import Plan

ROUTED = "freetoken-nvfp4-slot-banks"
"""Experts as banks, the scale of a tensor once per row in float16."""
ROUTED_STAGING = "checkpoint-native-host"
"""A misnomer of the published plan: the bytes are those of the resident banks."""
COMMON = "freetoken-native-device"
RUNTIME = "freetoken-block-runtime-device"

_UNFETCHED = ".mlp.shared_expert."
_UNFETCHED_KIND = ".input_scale"


@dataclass(frozen=True, kw_only=True)
class PublishedFigures:
    """Figures of the published plan, recomputed from a derived one. Every one is calculated."""

    staging_bytes: int
    persistent_bytes: Mapping[str, int]
    """Required persistent bytes in the execution's memory, by logical state."""
    required_persistent_bytes: int
    num_planned_keys: int
    unfetched_keys: tuple[str, ...]
    """Planned there, and never read; sorted."""
    fetched_bytes: int
    transient_upper_bound_bytes: int
    """Staging plus all bytes fetched. A bound by addition: they never are in memory together."""
    label: str = "calculated"


def unfetched_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """Those of the keys that the published run planned and did not fetch, sorted."""
    return tuple(sorted(key for key in keys if _UNFETCHED in key and key.endswith(_UNFETCHED_KIND)))


def published_figures(plan: Plan, manifest: Sequence[ManifestEntry]) -> PublishedFigures:
    """Recompute the published plan's figures from a plan and its tensor manifest."""
    reached = {
        memory
        for execution in plan.execution
        for required in execution.required_state
        for memory in required.memory_resources
    }
    required = [item for item in plan.materializations if item.requirement == "required"]
    persistent: dict[str, int] = {}
    for item in required:
        if item.persistence == "persistent" and item.memory_resource_id in reached:
            state = item.logical_state_id
            persistent[state] = persistent.get(state, 0) + item.expected_bytes
    staging = sum(item.expected_bytes for item in required if item.persistence == "transient")
    unfetched = unfetched_keys([entry.key for entry in manifest])
    fetched = sum(entry.source_bytes for entry in manifest if entry.key not in set(unfetched))
    return PublishedFigures(
        staging_bytes=staging,
        persistent_bytes=persistent,
        required_persistent_bytes=sum(persistent.values()),
        num_planned_keys=len(manifest),
        unfetched_keys=unfetched,
        fetched_bytes=fetched,
        transient_upper_bound_bytes=staging + fetched,
    )

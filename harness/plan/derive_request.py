"""What a plan is derived from: the records that decide every byte of it. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.plan.derive_resources import Device
from harness.plan.layout import AdapterLayout, CensusEntry, LayoutRequest
from harness.plan.records import (
    CheckpointFile,
    Checks,
    FixtureRecipe,
    MemoryAllowances,
    Resources,
    Scope,
    TimeoutsS,
)


@dataclass(frozen=True, kw_only=True)
class DeriveRequest:
    """Everything a derived plan depends on."""

    plan_version: str
    model_repository: str
    model_revision: str
    checkpoint_source: Mapping[str, Any]
    checkpoint_files: tuple[CheckpointFile, ...]
    census: tuple[CensusEntry, ...]
    """Tensors of the checkpoint; those that the layout does not need are left out of the plan."""
    layout: AdapterLayout
    layout_request: LayoutRequest
    resources: Resources
    """The environment's resources; the plan asks for what it uses of them."""
    compute_unit_id: str
    device_memory_id: str
    host_memory_id: str
    """Equal to ``device_memory_id`` where there is one memory; then nothing is staged."""
    reference_fixture: FixtureRecipe
    checks: Checks
    timeouts: TimeoutsS
    memory_allowances: MemoryAllowances
    scope: Scope
    pin_device: bool = False
    """Whether the plan pins the device's UUID."""
    num_stages: int | None = None
    """Processes to cut the range into; ``None`` for one that executes it whole."""
    has_nodes: bool = False
    """Whether each stage has a node of its own, for a machine of its own."""
    node: str | None = None
    """What the names of resources begin with, for a part of a plan with nodes."""
    stage_devices: tuple[Device, ...] | None = None
    """Of each stage in order; ``None`` where all share the unit above."""
    strategy_unit: str | None = None
    """Which execution, where the layout supports more than one."""

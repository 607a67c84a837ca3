"""What a derived plan asks of a machine: only the unit and memories it uses, and no more of them.

A plan's capacity is a minimum. It is the peak of the planned arenas and not the size of the
memory at hand, so that a frozen plan binds to every machine that can hold it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.errors import ResourceError
from harness.plan.layout import TensorSpec
from harness.plan.records import (
    ACCELERATOR_VRAM,
    ComputeUnit,
    Materialization,
    MemoryResource,
    Node,
    Resources,
)

TENSOR_ALIGNMENT_BYTES = 64
ARENA_GRANULE_BYTES = 64 << 10
"""The largest page size of the machines that plans are bound to."""
DEVICE_GRANULE_BYTES = 2 << 20
DEVICE_LEAST_BYTES = 20 << 20
"""A device's allocator gives a small block out of a segment of this size."""
CAPACITY_GRANULE_BYTES = 1 << 20


Copy = tuple[Materialization, Sequence[TensorSpec]]
"""What is realized, and its exact tensors."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A compute unit and its own memory, by their ids in an environment."""

    compute_unit_id: str
    device_memory_id: str


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Which of an environment's resources a plan uses, by their ids there."""

    devices: tuple[Device, ...]
    """Of each process; several may share one."""
    host_memory_id: str
    pin_device: bool
    unplanned_host_bytes: int
    """Allowance of each process beyond its arenas, which the host's memory must hold too."""
    unplanned_device_bytes: int = 0
    """The same for the process's own device memory."""


def plan_resources(
    there: Resources,
    placement: Placement,
    copies: Iterable[Copy],
) -> Resources:
    """The least resources that hold the materializations, without backing sources and links.

    Args:
        there: Resources of an environment.
        placement: The units and the memories to use; all of one node.
        copies: Everything that is realized; staging and persistent live together.

    Raises:
        ResourceError: When there are no such resources, or they are too small.
    """
    node, units = _find(there, placement)
    by_id = {memory.id: memory for memory in node.memory_resources}
    peak: defaultdict[str, int] = defaultdict(int)
    for item, specs in copies:
        kind = by_id[item.memory_resource_id].kind
        peak[item.memory_resource_id] += _arena_bytes(specs, kind)
    for device in placement.devices:
        peak[placement.host_memory_id] += placement.unplanned_host_bytes
        peak[device.device_memory_id] += placement.unplanned_device_bytes
    own = (device.device_memory_id for device in placement.devices)
    used = list(dict.fromkeys((placement.host_memory_id, *own)))
    memories = []
    for name in used:
        needed = _round_up(peak[name], CAPACITY_GRANULE_BYTES)
        if needed > by_id[name].capacity_bytes:
            raise ResourceError(
                f"the plan does not fit memory {name}",
                expected=f"{needed} bytes",
                got=f"{by_id[name].capacity_bytes} bytes",
                hint="use fewer positions, a smaller model or a larger memory",
            )
        memories.append(MemoryResource(id=name, kind=by_id[name].kind, capacity_bytes=needed))
    return Resources(
        swarm_id=there.swarm_id,
        nodes=(
            Node(
                id=node.id,
                compute_units=tuple(
                    ComputeUnit(
                        id=unit.id,
                        kind=unit.kind,
                        device_uuid=unit.device_uuid if placement.pin_device else None,
                        memory_resources=tuple(
                            name for name in unit.memory_resources if name in used
                        ),
                    )
                    for unit in units
                ),
                memory_resources=tuple(memories),
            ),
        ),
    )


def _find(there: Resources, placement: Placement) -> tuple[Node, list[ComputeUnit]]:
    """The node of the first device, and each device's unit there, once."""
    wanted = {device.compute_unit_id: device for device in placement.devices}
    first = placement.devices[0].compute_unit_id
    for node in there.nodes:
        units = {unit.id: unit for unit in node.compute_units}
        if first in units:
            known = {memory.id for memory in node.memory_resources}
            for name, device in wanted.items():
                _require(units.get(name), known, device, placement.host_memory_id)
            return node, [units[name] for name in wanted]
    raise ResourceError(
        "no such compute unit in the environment",
        expected=first,
        got=", ".join(unit.id for node in there.nodes for unit in node.compute_units),
    )


def _require(unit: ComputeUnit | None, known: set[str], device: Device, host: str) -> None:
    reached = () if unit is None else unit.memory_resources
    if {host, device.device_memory_id} - known or device.device_memory_id not in reached:
        raise ResourceError(
            f"compute unit {device.compute_unit_id} has not the memories to plan for",
            expected=f"{host} and {device.device_memory_id}",
            got=f"node: {', '.join(sorted(known))}; unit: {', '.join(reached)}",
        )


def _arena_bytes(specs: Sequence[TensorSpec], memory_kind: str) -> int:
    aligned = sum(_round_up(spec.num_bytes, TENSOR_ALIGNMENT_BYTES) for spec in specs)
    if memory_kind == ACCELERATOR_VRAM:
        return max(_round_up(aligned, DEVICE_GRANULE_BYTES), DEVICE_LEAST_BYTES)
    return _round_up(max(aligned, 1), ARENA_GRANULE_BYTES)


def _round_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule

"""The device that a plan asks for, as the probe of this machine takes it."""

from harness.measure.environment import DeviceRequest
from harness.plan.records import Plan


def device_of(plan: Plan, configured: DeviceRequest | None = None) -> DeviceRequest:
    """The device that a plan asks for, at least as large, under the configured caps."""
    units = [unit for node in plan.resources.nodes for unit in node.compute_units]
    memories = [memory for node in plan.resources.nodes for memory in node.memory_resources]
    kinds = {unit.kind for unit in units}
    vram = sum(item.capacity_bytes for item in memories if item.kind == "simulated-vram")
    if configured is not None:
        vram = max(vram, configured.simulated_vram_bytes or 0)
    simulated = kinds == {"simulated-accelerator"}
    return DeviceRequest(
        kind="simulated" if simulated else "cpu" if kinds <= {"cpu"} else "cuda",
        simulated_vram_bytes=vram if simulated else None,
        system_ram_limit_bytes=configured.system_ram_limit_bytes if configured else None,
    )

"""The device that a child computes on: found from the binding, handed to what allocates and moves.

Knows kinds of compute units and memories, and the driver behind a GPU; knows no model.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from harness.errors import ResourceError
from harness.plan.records import ACCELERATOR_VRAM, Plan
from harness.run.job import Job
from harness.state.arena import Memory
from harness.state.backing import Blocks, HostPages
from harness.state.device_blocks import DeviceBlocks, PinnedPages
from harness.state.driver import CudaDriver, Driver
from harness.state.recording import HostRecording, Recording
from harness.state.transfer import DeviceTransfer, HostTransfer, Transfer


@dataclass(frozen=True, kw_only=True)
class ComputeDevice:
    """Where a plan executes."""

    driver: Driver | None
    """Of a GPU; ``None`` on the host and on the simulated accelerator, which is the host."""

    @property
    def device(self) -> torch.device:
        """Where tensors of its own memory are."""
        return torch.device("cpu") if self.driver is None else self.driver.device

    def transfer(self) -> Transfer:
        """How rows come there from the host."""
        return HostTransfer() if self.driver is None else DeviceTransfer(self.driver)

    def record(self, work: Callable[[], None]) -> Recording:
        """Record work that is then replayed."""
        return HostRecording(work) if self.driver is None else self.driver.record(work)

    def blocks(self, memory_kind: str) -> Blocks:
        """Where blocks of a memory come from."""
        if self.driver is None:
            return HostPages()
        if memory_kind == ACCELERATOR_VRAM:
            return DeviceBlocks(self.driver)
        return PinnedPages(self.driver)


@contextmanager
def exhaustion_told() -> Iterator[None]:
    """Turn a device that has no room left into an error that says so.

    Raises:
        ResourceError: When work inside asked for more memory than there is.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ResourceError(
            "the device's memory is exhausted",
            got=str(error).partition(". ")[0],
            hint="use a larger device, fewer positions, or a plan of fewer layers",
        ) from error


def bound_device(plan: Plan, job: Job) -> ComputeDevice:
    """The device to which a plan's compute unit is bound.

    Raises:
        NotEvaluableError: When it is a GPU that this process does not see.
    """
    units = [unit for node in job.environment.resources.nodes for unit in node.compute_units]
    # Of a plan for several machines, a job has the binding of this one.
    bound = {job.binding.compute_units.get(each.compute_unit_id) for each in plan.execution}
    uuids = [unit.device_uuid for unit in units if unit.id in bound and unit.kind == "cuda-gpu"]
    return ComputeDevice(driver=CudaDriver(uuids[0] or "") if uuids else None)


def bound_memories(plan: Plan, job: Job, device: ComputeDevice) -> Mapping[str, Memory]:
    """One memory per memory id of a plan, with the capacity that this machine has for it.

    Args:
        plan: What this process realizes; memories of other stages alone are none of it.
        job: With the binding.
        device: Behind the plan's compute unit.
    """
    own = {memory.id for node in plan.resources.nodes for memory in node.memory_resources}
    real = {
        memory.id: memory
        for node in job.environment.resources.nodes
        for memory in node.memory_resources
    }
    return {
        plan_id: Memory(
            resource_id=plan_id,
            kind=real[real_id].kind,
            capacity_bytes=real[real_id].capacity_bytes,
            blocks=device.blocks(real[real_id].kind),
        )
        for plan_id, real_id in job.binding.memories.items()
        if plan_id in own
    }

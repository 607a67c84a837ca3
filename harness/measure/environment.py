"""What this machine has: memories with their capacities, compute units, and facts.

Everything is observed here and now; nothing is copied from a plan, and the ids are those of this
machine, to which a binding maps a plan's. Only what a run may publish is read: no host or user
names, no paths, and environment variables by allow list. Imports no library that it describes.
"""

import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.errors import InvalidInputError, NotEvaluableError, ResourceError
from harness.measure.cgroup import memory_limit_bytes
from harness.measure.cpu import cpu_model, instruction_set, num_usable_cores, read_cpuinfo
from harness.measure.distributions import installed_version
from harness.measure.gpus import Gpu, GpuSystem, probe_gpus, visible
from harness.plan.environment import Environment, Fact
from harness.plan.records import ComputeUnit, MemoryResource, Node, Resources

PROC = Path("/proc")
SWARM_ID = "local"
NODE_ID = "node0"
RAM_ID = f"{NODE_ID}.ram"
ACCELERATOR_ID = "accelerator0"
VRAM_ID = f"{ACCELERATOR_ID}.vram"
GPU_ID = "gpu{}"
CPU_ID = "cpu0"
_DISTRIBUTIONS = ("torch", "numpy", "safetensors", "tokenizers", "pyarrow", "triton")
ENVIRONMENT_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MKL_CBWR",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OMP_SCHEDULE",
    "OMP_WAIT_POLICY",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_CUDA_ALLOC_CONF",
)
"""Variables that can change bits, threads or heap growth; no others are ever recorded."""
_PLAIN_VALUE = re.compile(r"\A[A-Za-z0-9_.,:;=+\-{}() ]{0,100}\Z")
WITHHELD = "(withheld)"
"""Stands for a value that is no plain setting and might name a path."""


CAPS = ("simulated_vram_bytes", "system_ram_limit_bytes", "assumed_vram_bytes")
"""Fields of a device request that are sizes."""


@dataclass(frozen=True, kw_only=True)
class DeviceRequest:
    """Which device to look for, and configured caps. A cap only ever lowers a capacity."""

    kind: Literal["simulated", "cpu", "cuda"]
    simulated_vram_bytes: int | None = None
    """Capacity of the simulated accelerator's memory; needed for that kind only."""
    system_ram_limit_bytes: int | None = None
    assumed_vram_bytes: int | None = None
    """Memory of the GPU that a plan is made for, where there is none to look at. A plan asks for
    no more than it needs, and a run always looks at what there is."""


def physical_memory_bytes(*, proc: Path = PROC) -> int:
    """Memory of the machine, as its kernel counts it.

    Raises:
        NotEvaluableError: When it cannot be read.
    """
    path = proc / "meminfo"
    try:
        match = re.search(rb"^MemTotal:\s+(\d+) kB$", path.read_bytes(), re.MULTILINE)
    except OSError as error:
        raise NotEvaluableError("cannot read memory", got=str(error), where=str(path)) from error
    if match is None:
        raise NotEvaluableError("cannot read memory", expected="a MemTotal line", where=str(path))
    return int(match.group(1)) * 1024


def observe_facts(
    *, proc: Path = PROC, variables: Mapping[str, str] | None = None
) -> dict[str, Fact]:
    """Facts about this machine and this process, without any about a GPU.

    Args:
        proc: Where the process file system is mounted.
        variables: Environment variables; those of this process when absent.

    Raises:
        NotEvaluableError: When nothing can be observed.
    """
    physical, limit = physical_memory_bytes(proc=proc), memory_limit_bytes(proc=proc)
    return _facts(physical, limit, proc, os.environ if variables is None else variables)


def probe_environment(
    device: DeviceRequest,
    *,
    proc: Path = PROC,
    variables: Mapping[str, str] | None = None,
    find_gpus: Callable[[], GpuSystem] = probe_gpus,
) -> Environment:
    """Observe this machine as the environment that ``device`` asks for.

    Args:
        device: The kind of device and its caps.
        proc: Where the process file system is mounted.
        variables: Environment variables; those of this process when absent.
        find_gpus: Asks for the machine's GPUs; called for that kind of device only.

    Raises:
        InvalidInputError: When a cap is missing where one is needed, or is not positive.
        ResourceError: When the simulated memory does not fit into this machine's.
        NotEvaluableError: When nothing can be observed, or there is no GPU to look at.
    """
    _check_request(device)
    physical = physical_memory_bytes(proc=proc)
    limit = memory_limit_bytes(proc=proc)
    usable = physical if limit is None else min(physical, limit)
    cap = device.system_ram_limit_bytes
    ram = MemoryResource(
        id=RAM_ID, kind="system-ram", capacity_bytes=usable if cap is None else min(usable, cap)
    )
    facts = observe_facts(proc=proc, variables=variables)
    if device.kind == "cpu":
        parts = [_part(CPU_ID, "cpu")]
    elif device.kind == "simulated":
        vram = _simulated_vram(device.simulated_vram_bytes, usable)
        parts = [_part(ACCELERATOR_ID, "simulated-accelerator", vram)]
    else:
        system = find_gpus()
        setting = (os.environ if variables is None else variables).get("CUDA_VISIBLE_DEVICES")
        system = replace(system, gpus=visible(system.gpus, setting))
        if not system.gpus:
            raise NotEvaluableError(
                "no GPU is visible", got=f"CUDA_VISIBLE_DEVICES={setting}", where="the environment"
            )
        parts = [_gpu_part(index, gpu) for index, gpu in enumerate(system.gpus)]
        facts.update(_gpu_facts(system))
    node = Node(
        id=NODE_ID,
        compute_units=tuple(unit for unit, _ in parts),
        memory_resources=(ram, *(memory for _, memories in parts for memory in memories)),
    )
    return Environment(resources=Resources(swarm_id=SWARM_ID, nodes=(node,)), facts=facts)


def planning_environment(device: DeviceRequest, num_gpus: int = 1) -> Environment:
    """The environment to make a plan for: assumed GPUs where one is given, else this machine.

    Args:
        device: The kind of device and its caps.
        num_gpus: To assume, each of the same memory.

    Raises:
        HarnessError: As :func:`probe_environment` does.
    """
    if device.assumed_vram_bytes is None:
        return probe_environment(device)
    gpu = Gpu(
        uuid="",
        memory_bytes=device.assumed_vram_bytes,
        name=None,
        compute_capability=None,
        is_mig_instance=False,
    )
    assumed = GpuSystem(driver_version=None, cuda_driver_version=None, gpus=(gpu,) * num_gpus)
    return probe_environment(device, find_gpus=lambda: assumed)


def _part(
    unit_id: str, kind: str, *own: MemoryResource, uuid: str | None = None
) -> tuple[ComputeUnit, tuple[MemoryResource, ...]]:
    """A compute unit that executes from system RAM and from memories of its own."""
    names = (RAM_ID, *(memory.id for memory in own))
    return ComputeUnit(id=unit_id, kind=kind, device_uuid=uuid, memory_resources=names), own


def _gpu_part(index: int, gpu: Gpu) -> tuple[ComputeUnit, tuple[MemoryResource, ...]]:
    name = GPU_ID.format(index)
    memory = MemoryResource(
        id=f"{name}.vram", kind="accelerator-vram", capacity_bytes=gpu.memory_bytes
    )
    return _part(name, "cuda-gpu", memory, uuid=gpu.uuid or None)


def _gpu_facts(system: GpuSystem) -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        "gpu_driver_version": system.driver_version,
        "cuda_driver_version": system.cuda_driver_version,
    }
    for index, gpu in enumerate(system.gpus):
        name = GPU_ID.format(index)
        facts |= {
            f"{name}.name": gpu.name,
            f"{name}.compute_capability": gpu.compute_capability,
            f"{name}.is_mig_instance": gpu.is_mig_instance,
        }
    return facts


def _check_request(device: DeviceRequest) -> None:
    if device.kind not in ("simulated", "cpu", "cuda"):
        raise InvalidInputError(
            "unknown kind of device", expected="simulated, cpu or cuda", got=repr(device.kind)
        )
    if device.kind != "cuda" and device.assumed_vram_bytes is not None:
        raise InvalidInputError(
            "only a GPU's memory is assumed",
            expected="assumed_vram_bytes with device kind cuda",
            got=device.kind,
        )
    if device.kind == "simulated" and device.simulated_vram_bytes is None:
        raise InvalidInputError(
            "the simulated accelerator needs a capacity",
            expected="simulated_vram_bytes",
            hint="give the simulated memory a size in the device configuration",
        )
    for name in CAPS:
        value = getattr(device, name)
        if value is not None and value <= 0:
            raise InvalidInputError(f"{name} is not positive", got=str(value))


def _simulated_vram(configured: int | None, usable: int) -> MemoryResource:
    assert configured is not None
    if configured > usable:
        raise ResourceError(
            "the simulated memory does not fit into this machine's",
            expected=f"at most {usable} bytes (physical memory and control group limit)",
            got=f"{configured} bytes",
            where=VRAM_ID,
            hint="configure a smaller simulated memory",
        )
    return MemoryResource(id=VRAM_ID, kind="simulated-vram", capacity_bytes=configured)


def _facts(
    physical: int, limit: int | None, proc: Path, variables: Mapping[str, str]
) -> dict[str, Fact]:
    cpu = read_cpuinfo(proc=proc)
    facts: dict[str, Fact] = {
        "cpu_model": cpu_model(cpu),
        "instruction_set": instruction_set(cpu),
        "num_cores": num_usable_cores(proc=proc),
        "physical_memory_bytes": physical,
        "cgroup_memory_limit_bytes": limit,
        "machine": platform.machine(),
        "operating_system": platform.system(),
        "kernel_release": _release(platform.release()),
        "python_implementation": platform.python_implementation(),
        "python_version": platform.python_version(),
        "byte_order": sys.byteorder,
    }
    facts.update({f"{name}_version": installed_version(name) for name in _DISTRIBUTIONS})
    facts.update({f"env.{name}": value for name, value in allowed_variables(variables).items()})
    return facts


def _release(text: str) -> str:
    """The numbers of a kernel release; what follows them names whoever built it."""
    return text[: len(text) - len(text.lstrip("0123456789."))].rstrip(".")


def allowed_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables of the allow list that are set, with values that are plain settings."""
    return {
        name: variables[name] if _PLAIN_VALUE.match(variables[name]) else WITHHELD
        for name in ENVIRONMENT_VARIABLES
        if name in variables
    }

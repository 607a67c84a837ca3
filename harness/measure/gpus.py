"""The GPUs of this machine, as the system's management library (NVML) names and sizes them.

Asks the library alone: no context is made on a device and nothing is allocated there. What a
device or a driver does not tell is ``None``. Knows nothing of torch, plans or other memory.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from harness.errors import NotEvaluableError

T = TypeVar("T")
_MODULE = "pynvml"
_DISTRIBUTION = "nvidia-ml-py"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One device that work can be given to: a whole GPU, or one instance of a divided one."""

    uuid: str
    """``GPU-...``, or ``MIG-...`` for an instance."""
    memory_bytes: int
    name: str | None
    compute_capability: str | None
    is_mig_instance: bool


@dataclass(frozen=True, kw_only=True)
class GpuSystem:
    """What the driver says of itself, and its devices in its own order."""

    driver_version: str | None
    cuda_driver_version: str | None
    """Newest CUDA version that the driver serves."""
    gpus: tuple[Gpu, ...]


def probe_gpus(load: Callable[[], ModuleType] | None = None) -> GpuSystem:
    """Ask the management library for its devices.

    Args:
        load: Imports the library's Python module; ``pynvml`` when absent.

    Raises:
        NotEvaluableError: When there is no such module, no driver, or no device.
    """
    with _library(load) as nvml:
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        gpus = tuple(gpu for handle in handles for gpu in _devices(nvml, handle))
        version = _told(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
        system = GpuSystem(
            driver_version=_told(nvml, nvml.nvmlSystemGetDriverVersion),
            cuda_driver_version=None if version is None else _dotted(version),
            gpus=gpus,
        )
    if not system.gpus:
        raise NotEvaluableError("there is no GPU", expected="one or more", got="none")
    return system


def visible(gpus: Sequence[Gpu], setting: str | None) -> tuple[Gpu, ...]:
    """The devices that ``CUDA_VISIBLE_DEVICES`` leaves to a process, in its order.

    As CUDA reads it: indices or beginnings of UUIDs, up to the first that names no device.

    Args:
        gpus: All devices, in the driver's order.
        setting: The variable's value; ``None`` where it is not set.
    """
    if setting is None:
        return tuple(gpus)
    found = []
    for item in setting.split(","):
        name = item.strip()
        if name.isdecimal() and int(name) < len(gpus):
            found.append(gpus[int(name)])
            continue
        named = [gpu for gpu in gpus if name and gpu.uuid.startswith(name)]
        if len(named) != 1:
            break
        found.append(named[0])
    return tuple(found)


@contextmanager
def _library(load: Callable[[], ModuleType] | None) -> Iterator[Any]:
    try:
        nvml: Any = importlib.import_module(_MODULE) if load is None else load()
    except ImportError as error:
        raise NotEvaluableError(
            "GPUs cannot be looked for",
            expected=f"the distribution {_DISTRIBUTION}",
            got="not installed",
            hint="install the project's extra cuda, or run on the simulated accelerator",
        ) from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NotEvaluableError(
            "there is no GPU driver",
            expected="NVIDIA's driver and its management library",
            got=str(error),
            hint="run on the simulated accelerator",
        ) from error
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise NotEvaluableError("the GPU driver does not answer", got=str(error)) from error
    finally:
        nvml.nvmlShutdown()


def _devices(nvml: Any, handle: Any) -> Iterator[Gpu]:
    """The device itself, or the instances that it is divided into."""
    mode = _told(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        yield _gpu(nvml, handle, handle, is_mig_instance=False)
        return
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        ask = partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        instance: Any = _told(nvml, ask)
        if instance is not None:
            yield _gpu(nvml, instance, handle, is_mig_instance=True)


def _gpu(nvml: Any, device: Any, parent: Any, *, is_mig_instance: bool) -> Gpu:
    capability = _told(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(parent))
    return Gpu(
        uuid=_text(nvml.nvmlDeviceGetUUID(device)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(device).total),
        name=_told(nvml, lambda: _text(nvml.nvmlDeviceGetName(parent))),
        compute_capability=None if capability is None else "{}.{}".format(*capability),
        is_mig_instance=is_mig_instance,
    )


def _told(nvml: Any, ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except nvml.NVMLError:
        return None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _dotted(version: int) -> str:
    """The library's 12080 is version 12.8."""
    return f"{version // 1000}.{version % 1000 // 10}"

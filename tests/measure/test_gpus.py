"""The management library is played by a module of the same functions; no GPU is asked."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import ExitCode, InvalidInputError, NotEvaluableError
from harness.measure.environment import DeviceRequest, planning_environment, probe_environment
from harness.measure.gpus import Gpu, probe_gpus, visible

GIB = 1 << 30


class NVMLError(Exception):
    pass


@dataclass
class Card:
    uuid: str | bytes = "GPU-1"
    memory_bytes: int = 80 * GIB
    name: str | bytes | None = "A GPU"
    capability: tuple[int, int] | None = (9, 0)
    mig: tuple[int, int] | None = None
    instances: list["Card"] = field(default_factory=list)


def told(value: Any) -> Any:
    if value is None:
        raise NVMLError("not supported")
    return value


class Library:
    """``pynvml`` over some cards."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(
        self, *cards: Card, driver: str | None = "570.1", cuda: int | None = 12080
    ) -> None:
        self.cards, self.driver, self.cuda = cards, driver, cuda
        self.is_open = False

    def nvmlInit(self) -> None:  # noqa: N802
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetCount": lambda: len(self.cards),
            "nvmlDeviceGetHandleByIndex": lambda index: self.cards[index],
            "nvmlSystemGetDriverVersion": lambda: told(self.driver),
            "nvmlSystemGetCudaDriverVersion_v2": lambda: told(self.cuda),
            "nvmlDeviceGetMigMode": lambda card: told(card.mig),
            "nvmlDeviceGetMaxMigDeviceCount": lambda card: len(card.instances) + 1,
            "nvmlDeviceGetMigDeviceHandleByIndex": lambda card, index: told(
                dict(enumerate(card.instances)).get(index)
            ),
            "nvmlDeviceGetUUID": lambda card: card.uuid,
            "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(total=card.memory_bytes),
            "nvmlDeviceGetName": lambda card: told(card.name),
            "nvmlDeviceGetCudaComputeCapability": lambda card: told(card.capability),
        }
        return answers[name]


def test_devices_in_the_driver_s_order() -> None:
    library = Library(Card(uuid=b"GPU-1", name=b"One"), Card(uuid="GPU-2", memory_bytes=GIB))
    system = probe_gpus(lambda: library)  # type: ignore[arg-type,return-value]
    assert (system.driver_version, system.cuda_driver_version) == ("570.1", "12.8")
    assert [gpu.uuid for gpu in system.gpus] == ["GPU-1", "GPU-2"]
    assert [gpu.memory_bytes for gpu in system.gpus] == [80 * GIB, GIB]
    assert (system.gpus[0].name, system.gpus[0].compute_capability) == ("One", "9.0")
    assert not library.is_open


def test_what_is_not_told_is_none() -> None:
    library = Library(Card(name=None, capability=None), driver=None, cuda=None)
    system = probe_gpus(lambda: library)  # type: ignore[arg-type,return-value]
    assert (system.driver_version, system.cuda_driver_version) == (None, None)
    assert (system.gpus[0].name, system.gpus[0].compute_capability) == (None, None)


def test_a_divided_gpu_is_its_instances() -> None:
    parts = [Card(uuid=f"MIG-{index}", memory_bytes=10 * GIB) for index in range(2)]
    whole = Card(mig=(1, 1), instances=parts)
    system = probe_gpus(lambda: Library(whole, Card(uuid="GPU-2", mig=(0, 1))))  # type: ignore[arg-type,return-value]
    assert [(gpu.uuid, gpu.is_mig_instance) for gpu in system.gpus] == [
        ("MIG-0", True),
        ("MIG-1", True),
        ("GPU-2", False),
    ]
    assert system.gpus[0].name == "A GPU"


def absent() -> Any:
    raise ImportError("no module")


def broken() -> Any:
    library = Library()
    library.nvmlInit = lambda: told(None)  # type: ignore[method-assign]
    return library


def failing() -> Any:
    library = Library(Card())
    library.__dict__["nvmlDeviceGetUUID"] = lambda card: told(None)
    return library


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (absent, "cannot be looked for"),
        (broken, "no GPU driver"),
        (Library, "there is no GPU"),
        (failing, "does not answer"),
    ],
)
def test_nothing_to_look_at_cannot_be_evaluated(load: Any, said: str) -> None:
    with pytest.raises(NotEvaluableError, match=said) as caught:
        probe_gpus(load)
    assert caught.value.exit_code == ExitCode.NOT_EVALUABLE


def test_the_environment_has_a_unit_and_a_memory_per_gpu() -> None:
    library = Library(Card(), Card(uuid="GPU-2", memory_bytes=GIB))
    environment = probe_environment(
        DeviceRequest(kind="cuda"),
        variables={"CUDA_VISIBLE_DEVICES": "0,1"},
        find_gpus=lambda: probe_gpus(lambda: library),  # type: ignore[arg-type,return-value]
    )
    (node,) = environment.resources.nodes
    assert [(unit.id, unit.kind, unit.device_uuid) for unit in node.compute_units] == [
        ("gpu0", "cuda-gpu", "GPU-1"),
        ("gpu1", "cuda-gpu", "GPU-2"),
    ]
    assert node.compute_units[1].memory_resources == ("node0.ram", "gpu1.vram")
    assert [(memory.kind, memory.id) for memory in node.memory_resources] == [
        ("system-ram", "node0.ram"),
        ("accelerator-vram", "gpu0.vram"),
        ("accelerator-vram", "gpu1.vram"),
    ]
    assert environment.facts["gpu_driver_version"] == "570.1"
    assert environment.facts["gpu1.compute_capability"] == "9.0"
    assert environment.facts["env.CUDA_VISIBLE_DEVICES"] == "0,1"


def test_a_plan_is_made_for_an_assumed_gpu_without_one() -> None:
    device = DeviceRequest(kind="cuda", assumed_vram_bytes=GIB)
    (node,) = planning_environment(device).resources.nodes
    assert [(unit.kind, unit.device_uuid) for unit in node.compute_units] == [("cuda-gpu", None)]
    assert node.memory_resources[1].capacity_bytes == GIB
    with pytest.raises(InvalidInputError, match="only a GPU's memory is assumed"):
        planning_environment(DeviceRequest(kind="cpu", assumed_vram_bytes=GIB))
    with pytest.raises(InvalidInputError, match="not positive"):
        planning_environment(DeviceRequest(kind="cuda", assumed_vram_bytes=0))


def test_a_run_looks_at_what_there_is(tmp_path: Path) -> None:
    device = DeviceRequest(kind="cuda", assumed_vram_bytes=GIB)
    with pytest.raises(NotEvaluableError, match="cannot be looked for"):
        probe_environment(device, find_gpus=lambda: probe_gpus(absent))


def gpu(uuid: str) -> Gpu:
    return Gpu(
        uuid=uuid,
        memory_bytes=GIB,
        name=None,
        compute_capability=None,
        is_mig_instance=uuid.startswith("MIG"),
    )


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, ["GPU-aa1", "GPU-ab2", "MIG-cc3"]),
        ("1", ["GPU-ab2"]),
        ("1, 0", ["GPU-ab2", "GPU-aa1"]),
        ("GPU-ab", ["GPU-ab2"]),
        ("MIG-cc3", ["MIG-cc3"]),
        ("0,7,1", ["GPU-aa1"]),
        ("GPU-a", []),
        ("-1", []),
        ("", []),
    ],
)
def test_only_visible_devices_are_there(setting: str | None, expected: list[str]) -> None:
    gpus = [gpu("GPU-aa1"), gpu("GPU-ab2"), gpu("MIG-cc3")]
    assert [each.uuid for each in visible(gpus, setting)] == expected


def test_no_visible_device_cannot_be_evaluated() -> None:
    with pytest.raises(NotEvaluableError, match="no GPU is visible"):
        probe_environment(
            DeviceRequest(kind="cuda"),
            variables={"CUDA_VISIBLE_DEVICES": ""},
            find_gpus=lambda: probe_gpus(lambda: Library(Card())),  # type: ignore[arg-type,return-value]
        )

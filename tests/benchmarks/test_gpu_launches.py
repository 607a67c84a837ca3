"""The GPU check on tensors that say they are a GPU's: what it records waits for nothing."""

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

sys.path.insert(0, str(Path(__file__).parents[1] / "adapters"))

from fake_cuda import CUDA, Crossings, fake_cuda

from benchmarks.gpu import cases, invariance
from benchmarks.gpu.case import FULL
from benchmarks.gpu.device import Device

TRITON = "triton/1"


class Seen(Device):
    """Runs what would be recorded, once, and looks on."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.device = CUDA
        self.crossings: list[str] = []

    def launch_seconds(self, work: object, repeats: int) -> float:
        with Crossings() as seen:
            work()  # type: ignore[operator]
        self.crossings += seen.seen
        return 1.0


@pytest.mark.slow
@pytest.mark.long
def test_nothing_that_is_recorded_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device, names, waiting = Seen(), [], []
    with fake_cuda(monkeypatch) as launched:
        for case in cases.cases(FULL, CUDA):
            if case.launch is None:
                continue
            launched.clear()
            # What is prepared outside the recording may move; the work itself may not.
            device.launch_seconds(case.launch(TRITON), 1)
            names.append(case.name)
            waiting += [case.name] if device.crossings or not launched else []
            device.crossings.clear()
        for name, cost in invariance.costs(FULL, device, TRITON, 1):
            cost()
            waiting += [name] if device.crossings else []
            device.crossings.clear()
    assert waiting == []
    assert len(names) > 30

from dataclasses import dataclass

import pytest
import torch

from harness.plan.layout import TensorSpec
from harness.run.conditions import device_class, execution_conditions
from harness.state.arena import Memory


@dataclass
class Stub:
    """An executor of which only the state and the conditions are asked."""

    state: dict[str, torch.Tensor]

    def declared_state(self) -> dict[str, torch.Tensor]:
        return self.state

    def conditions(self) -> dict[str, str]:
        return {"dtype": "float32", "kernel_set": "some/1", "positions": "8"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("system-ram", "cpu"),
        ("simulated-vram", "simulated-accelerator"),
        # A CPU tensor cannot lie there, so nothing is claimed.
        ("accelerator-vram", "unknown"),
    ],
)
def test_the_device_is_where_the_state_was_found(kind: str, expected: str) -> None:
    memory = Memory(resource_id="m", kind=kind, capacity_bytes=1 << 20)
    arena = memory.allocate("state", [TensorSpec(name="k", dtype="float32", shape=(4,))])
    executor = Stub(dict(arena.tensors))
    assert device_class(executor, {"state": arena}, {"m": memory}) == expected
    assert device_class(Stub({"k": torch.zeros(4)}), {"state": arena}, {"m": memory}) == "unknown"


def test_the_geometry_is_that_of_the_recorded_steps() -> None:
    steps = [{"phase": "prefill", "step": i, "num_rows": n} for i, n in enumerate((4, 4, 1))]
    steps += [{"phase": "decode", "step": s, "num_rows": 1} for _ in range(2) for s in range(3)]
    found = execution_conditions(Stub({}), steps)
    assert found["geometry"] == "prefill=2x4+1x1,decode=3,positions=8"
    assert (found["dtype"], found["kernel_set"]) == ("float32", "some/1")

"""One bit of one resident weight flips after the weights were hashed, before the first step."""

from typing import Any

import torch

from harness.adapters.llama.model import LlamaExecutor
from harness.laboratory.faults.wrapping import before
from harness.realize.decode import ExecutionLoop

LAYER = 1


def plant() -> None:
    """Wrap the execution loop in this process."""

    def flip(self: ExecutionLoop, schedule: Any) -> None:
        del schedule
        executor = self._executor
        assert isinstance(executor, LlamaExecutor)
        # Of a float32 the lowest bit of the exponent: twice, or half.
        executor._layers[LAYER].down.view(torch.uint8)[0, 2] ^= 0x80

    before(ExecutionLoop, "run", flip)

"""A buffer that is used before all of it was written: one element is what memory held before.

What memory held is drawn from the system's randomness, as it would be after other work.
"""

import secrets
from typing import Any

import torch

from harness.adapters.llama.model import LlamaExecutor
from harness.laboratory.faults.wrapping import after


def plant() -> None:
    """Wrap the gated activation of every executor that is made in this process."""

    def bind(_: None, self: LlamaExecutor, **bound: Any) -> None:
        del bound
        activation = self._silu_gated

        def unwritten(gate_up: torch.Tensor) -> torch.Tensor:
            out = activation(gate_up)
            out[-1, -1] = secrets.randbelow(1 << 16) / (1 << 12)
            return out

        self._silu_gated = unwritten

    after(LlamaExecutor, "__init__", bind)

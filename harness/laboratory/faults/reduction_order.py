"""A sum whose order changes from call to call, as of atomic additions on a device.

The last layer's down projection is summed over pieces of its columns, in an order drawn each time.
"""

import secrets
from typing import Any

import torch

from harness.adapters.llama.model import LlamaExecutor
from harness.laboratory.faults.wrapping import after

NUM_PIECES = 8


def plant() -> None:
    """Wrap the product of every executor that is made in this process."""

    def bind(_: None, self: LlamaExecutor, **bound: Any) -> None:
        del bound
        linear, down = self._linear, self._layers[-1].down

        def unordered(
            x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            if weight is not down:
                return linear(x, weight, bias)
            pieces = list(zip(x.chunk(NUM_PIECES, 1), weight.chunk(NUM_PIECES, 1), strict=True))
            secrets.SystemRandom().shuffle(pieces)
            total = torch.zeros(len(x), len(weight), dtype=x.dtype, device=x.device)
            for columns, part in pieces:
                total += columns @ part.t()
            return total

        self._linear = unordered

    after(LlamaExecutor, "__init__", bind)

"""A thread that writes a cached value while attention reads it; which comes first changes.

The thread is real, and joined on one side of the product or on the other. Which side is drawn once,
and is the other one each time the same step runs again, so that both orders come up on every
machine, however few trials there are.
"""

import secrets
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from harness.adapters.llama.model import LlamaExecutor
from harness.laboratory.faults.wrapping import after

LAYER = 1


def plant() -> None:
    """Wrap attention of every executor that is made in this process."""

    def bind(_: None, self: LlamaExecutor, **bound: Any) -> None:
        del bound
        attend, cached = self._attention.attend, self._v[LAYER]
        first = secrets.randbelow(2)
        runs: Counter[int] = Counter()

        def write() -> None:
            with torch.inference_mode():
                cached[0] *= 1.5

        def raced(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **named: Any
        ) -> torch.Tensor:
            if v.data_ptr() != cached.data_ptr():
                return attend(q, k, v, *rest, **named)
            writer = threading.Thread(target=write)
            runs[len(v)] += 1
            writes_first = (runs[len(v)] + first) % 2 == 0
            if writes_first:
                writer.start()
                writer.join()
            mixed = attend(q, k, v, *rest, **named)
            if not writes_first:
                writer.start()
                writer.join()
            return mixed

        self._attention = replace(self._attention, attend=raced)

    after(LlamaExecutor, "__init__", bind)

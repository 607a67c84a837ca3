"""The unallocated window pool on a device whose writes race: duplicate slots, in any order.

All rows of one write go to slot 0, and which of them stays there is drawn from the system's
randomness, as it would follow from the timing of threads.
"""

import secrets
from dataclasses import replace
from typing import Any

import torch

from harness.adapters.gemma.model import GemmaExecutor
from harness.laboratory.faults import swa_unallocated


def plant() -> None:
    """Wrap pool, session and executor in this process."""
    swa_unallocated.plant()
    bind = GemmaExecutor.__init__

    def bind_raced(self: GemmaExecutor, **bound: Any) -> None:
        bind(self, **bound)
        store = self._kv_cache.store

        def raced(
            k: torch.Tensor,
            v: torch.Tensor,
            k_cache: torch.Tensor,
            v_cache: torch.Tensor,
            slots: torch.Tensor,
        ) -> None:
            order = torch.tensor(_shuffled(len(slots)))
            store(k[order], v[order], k_cache, v_cache, slots[order])

        self._kv_cache = replace(self._kv_cache, store=raced)

    # A fault is put around the code under test, in a child process of its own.
    GemmaExecutor.__init__ = bind_raced  # type: ignore[method-assign]


def _shuffled(count: int) -> list[int]:
    order = list(range(count))
    secrets.SystemRandom().shuffle(order)
    return order

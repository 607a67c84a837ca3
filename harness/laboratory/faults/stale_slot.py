"""A mapping that lags behind: the newest position is translated to the slot of the one before it.

In the window's pool alone. Two positions then share a slot, and the later write of one step wins.
"""

from typing import Any

import torch

from harness.laboratory.faults.wrapping import after
from harness.state.geometry import SWA
from harness.state.hybrid import HybridPool


def plant() -> None:
    """Wrap the pool in this process."""

    def stale(slots: torch.Tensor, self: HybridPool, kind: Any, begin: int, end: int) -> Any:
        if kind != SWA or end - begin < 2:
            return slots
        lagging = slots.clone()
        lagging[-1] = lagging[-2]
        return lagging

    after(HybridPool, "slots", stale)

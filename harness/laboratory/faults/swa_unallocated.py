"""The defect of a hybrid pool that is built and never allocated from.

Positions get slots of the full pool only; the mapping into the window's pool stays all zero, so
that every write of a window layer lands in slot 0, and every read comes from there. What would
stop it (a translation that fails closed, a restore that verifies) is taken away too: the fault is
a runtime that has none of it.
"""

import torch

from harness.state.geometry import Kind
from harness.state.hybrid import HybridPool
from harness.state.session import PagedSession


def plant() -> None:
    """Wrap the pool and the session in this process."""
    map_positions = HybridPool.map_positions

    def map_full_only(self: HybridPool, begin: int, end: int) -> None:
        swa, self._swa = self._swa, None
        try:
            map_positions(self, begin, end)
        finally:
            self._swa = swa

    def unchecked(self: HybridPool, kind: Kind, begin: int, end: int) -> torch.Tensor:
        return self.translate(kind, begin, end)

    def read_back_only(self: PagedSession, positions: int) -> None:
        self.pool.read_back()

    for owner, name, wrapper in (
        (HybridPool, "map_positions", map_full_only),
        (HybridPool, "slots", unchecked),
        (PagedSession, "_verify", read_back_only),
    ):
        setattr(owner, name, wrapper)

"""A copy of resident weights stays in the host's memory, where nobody planned it."""

from typing import Any

from harness.laboratory.faults.wrapping import before
from harness.realize.realizer import Realizer
from harness.state.digests import tensor_bytes

KEPT: list[bytes] = []
"""The mirror: what it is that it lives on."""


def plant() -> None:
    """Wrap the activation in this process."""

    def leak(self: Realizer, *_: Any) -> None:
        for arena in self.arenas().values():
            KEPT.extend(bytes(tensor_bytes(tensor.cpu())) for tensor in arena.tensors.values())

    before(Realizer, "activate", leak)

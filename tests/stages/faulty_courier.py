"""A courier with one fault planted in its runtime: ``faulty_courier.py FAULT -- ARGS``.

Faults are wrappers around the real code; nothing in the code under test knows of them.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch

from harness.run import courier
from harness.run.child import run_child
from harness.stages.transport import Transport


def wrap_send(act: Callable[[torch.Tensor, str], torch.Tensor]) -> None:
    """Have what is sent, and what it is, go through ``act``."""
    original = Transport.send

    def send(self: Transport, tensor: torch.Tensor, to: int, what: str, **more: Any) -> None:
        original(self, act(tensor, what), to, what, **more)

    Transport.send = send  # type: ignore[method-assign]


def bent_table(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """One bit of a table changes on its way."""
    if what == "steps.parquet of a parcel":
        tensor = tensor.clone()
        tensor[40] ^= 1
    return tensor


def killed_at_report(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """The courier dies in the midst of a report."""
    if what == "steps.parquet of a parcel":
        os.kill(os.getpid(), signal.SIGKILL)
    return tensor


FAULTS = {"bent-table": bent_table, "killed-at-report": killed_at_report}

if __name__ == "__main__":
    split = sys.argv.index("--")
    wrap_send(FAULTS[sys.argv[1]])
    sys.argv = [sys.argv[0], *sys.argv[split + 1 :]]
    run_child(courier.main)

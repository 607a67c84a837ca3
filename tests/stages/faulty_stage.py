"""A stage with one fault planted in its runtime: ``faulty_stage.py FAULT [VALUE] -- ARGS``.

Faults are wrappers around the real code; nothing in the code under test knows of them.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from harness.plan.load import load_plan
from harness.run import place, stage
from harness.run.child import run_child
from harness.stages.chain import Stage


def at_step(phase: str, number: int, number_of_signal: signal.Signals) -> None:
    """Send this process a signal when its turn in a step comes."""
    original = Stage.step

    def wrapped(self: Stage, planned: Any, token_ids: Any) -> Any:
        if (planned.phase, planned.step) == (phase, number):
            os.kill(os.getpid(), number_of_signal)
        return original(self, planned, token_ids)

    Stage.step = wrapped  # type: ignore[method-assign]


def at_load(number_of_signal: signal.Signals) -> None:
    def wrapped(family: str) -> Any:
        os.kill(os.getpid(), number_of_signal)

    stage.reference_for = wrapped


def other_plan(path: str) -> None:
    stage.load_plan = lambda _: load_plan(Path(path))


def other_version(_: str) -> None:
    place.package_digest = lambda: "sha256:" + "0" * 64


def other_dtype(_: str) -> None:
    original = stage.plane_form
    stage.plane_form = lambda *args: replace(original(*args), dtype=torch.bfloat16)


def late(path: str) -> None:
    """Come to the meeting when a file is there."""
    original = stage.join

    def wrapped(*args: Any) -> Any:
        while not Path(path).exists():
            time.sleep(0.05)
        return original(*args)

    stage.join = wrapped


FAULTS: dict[str, Callable[[str], None]] = {
    "killed-in-load": lambda _: at_load(signal.SIGKILL),
    "killed-in-prefill": lambda _: at_step("prefill", 1, signal.SIGKILL),
    "killed-in-decode": lambda _: at_step("decode", 3, signal.SIGKILL),
    "hangs-in-decode": lambda _: at_step("decode", 3, signal.SIGSTOP),
    "late": late,
    "other-plan": other_plan,
    "other-version": other_version,
    "other-dtype": other_dtype,
}

if __name__ == "__main__":
    split = sys.argv.index("--")
    name, *values = sys.argv[1:split]
    FAULTS[name](*(values or [""]))
    sys.argv = [sys.argv[0], *sys.argv[split + 1 :]]
    run_child(stage.main)

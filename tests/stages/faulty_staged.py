"""A producer of one stage with faults planted in its runtime: ``faulty_staged.py FAULTS -- ARGS``.

FAULTS is a JSON object: number of a stage -> fault and values. Faults are wrappers around the real
code; nothing in the code under test knows of them.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from harness.plan.load import load_plan
from harness.realize.realizer import Realizer
from harness.run import place, producer
from harness.run.child import run_child
from harness.run.job import read_job
from harness.stages.chain import Stage
from harness.stages.transport import Transport


def before(owner: Any, name: str, act: Callable[..., object]) -> None:
    """Run ``act`` with a method's own arguments before it."""
    original = getattr(owner, name)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        act(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    setattr(owner, name, wrapped)


def at_step(phase: str, number: int, number_of_signal: signal.Signals) -> None:
    """Send this process a signal when its turn in a step comes."""

    def act(self: Stage, planned: Any, token_ids: Any) -> None:
        del self, token_ids
        if (planned.phase, planned.step) == (phase, number):
            os.kill(os.getpid(), number_of_signal)

    before(Stage, "step", act)


def killed_in_load() -> None:
    before(Realizer, "realize", lambda *_: os.kill(os.getpid(), signal.SIGKILL))


def other_plan(path: str) -> None:
    producer.load_plan = lambda _: load_plan(Path(path))


def other_version() -> None:
    place.package_digest = lambda: "sha256:" + "0" * 64


def other_dtype() -> None:
    original = place.plane_form
    place.plane_form = lambda *args: replace(original(*args), dtype=torch.bfloat16)


def second_leader() -> None:
    """Take the first stage's place, at the port at which it listens."""

    def of_another(path: Any) -> Any:
        job = read_job(path)
        assert job.place is not None
        return replace(job, place=replace(job.place, number=0))

    producer.read_job = of_another


def bent_plane() -> None:
    """One bit of a plane changes on its way, in a decode step."""
    original = Transport.post
    sent = []

    def post(self: Transport, tensors: Sequence[torch.Tensor], to: int, what: str) -> None:
        header, rows = tensors
        if what == "the plane of decode step 1":
            sent.append(what)
            if len(sent) == 1:
                rows = rows.clone()
                rows.view(torch.uint8).view(-1)[0] ^= 1
        original(self, [header, rows], to, what)

    Transport.post = post  # type: ignore[method-assign]


def other_token() -> None:
    """The last stage sends another token than it chose, once."""
    original = Transport.send
    sent = []

    def send(self: Transport, tensor: torch.Tensor, to: int, what: str, **more: Any) -> None:
        if what == "the token of decode step 0" and tensor.shape == (1, 1):
            sent.append(what)
            if len(sent) == 1:
                tensor = (tensor + 1) % 2
        original(self, tensor, to, what, **more)

    Transport.send = send  # type: ignore[method-assign]


FAULTS: dict[str, Callable[..., None]] = {
    "killed-in-load": killed_in_load,
    "killed-in-prefill": lambda: at_step("prefill", 1, signal.SIGKILL),
    "killed-in-decode": lambda: at_step("decode", 1, signal.SIGKILL),
    "hangs-in-decode": lambda: at_step("decode", 1, signal.SIGSTOP),
    "other-plan": other_plan,
    "other-version": other_version,
    "other-dtype": other_dtype,
    "second-leader": second_leader,
    "bent-plane": bent_plane,
    "other-token": other_token,
}

if __name__ == "__main__":
    split = sys.argv.index("--")
    planted = json.loads(sys.argv[1])
    arguments = sys.argv[split + 1 :]
    own = read_job(Path(arguments[arguments.index("--job") + 1])).place
    if own is not None and str(own.number) in planted:
        name, *values = planted[str(own.number)]
        FAULTS[name](*values)
    sys.argv = [sys.argv[0], *arguments]
    run_child(producer.main)

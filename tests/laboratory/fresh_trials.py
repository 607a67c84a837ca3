"""Realizes an experiment in many fresh processes; prints how often they agree, as JSON.

``fresh_trials.py started|forked EXPERIMENT FOLDER NUM_PROCESSES [OVERRIDE ...]``, with plan, cache
and store under the folder. Each process runs the plan once, and once more with its boundaries
armed. ``started`` is what ``harness localize`` does. With ``forked``, which takes half the time,
supervisor, producers, witnesses and audit are the same, but producers and witnesses are forked from
this process, which has imported everything and computed nothing. Each is still a process of its
own: it binds, warms up, reads the checkpoint, realizes and runs anew. What it shares with others is
what the interpreter and the libraries are after their import.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import harness.measure.witness
import harness.run.fixture
import harness.run.producer
from harness.adapters.families import adapter_for, reference_for
from harness.cli.derive import settings_of
from harness.cli.project import device_request
from harness.evidence.store import Store
from harness.experiment import compose_experiment
from harness.laboratory.cases import Axes, along_axes, freeze_cases
from harness.laboratory.intervention import merged
from harness.laboratory.localize import localize
from harness.laboratory.recheck import case_tables
from harness.plan.rules.workload import MAX_REALIZATIONS
from harness.realize.arming import Arming
from harness.run import processes
from harness.run.child import run_child
from harness.run.progress import Progress
from harness.run.request import RunRequest

CHILDREN = {
    module.__name__: module
    for module in (harness.run.producer, harness.run.fixture, harness.measure.witness)
}


class Forked:
    """What :class:`subprocess.Popen` is to a child of the supervisor, without a start."""

    def __init__(self, argv: Sequence[str], *, pass_fds: Sequence[int], **_: Any) -> None:
        out, err = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(out[1], 1)
            os.dup2(err[1], 2)
            _close_all_but({0, 1, 2, *pass_fds})
            _be(argv[2], argv[3:])
        for pipe in (out, err):
            os.close(pipe[1])
        self.stdout: BinaryIO = os.fdopen(out[0], "rb")
        self.stderr: BinaryIO = os.fdopen(err[0], "rb")

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; who tests looks at a test that takes too long."""
        del timeout
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        """As Popen does."""
        os.kill(self.pid, signal.SIGKILL)


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _be(module: str, arguments: Sequence[str]) -> None:
    """Be the child that this module is, and never return."""
    sys.argv = [module, *arguments]
    code: Any = 70
    try:
        run_child(CHILDREN[module].main)
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code or 0))


def prepare_to_fork(family: str) -> None:
    """Import what the children would, and let the supervisor fork them."""
    adapter_for(family)
    reference_for(family)
    processes.subprocess = SimpleNamespace(  # type: ignore[assignment]
        Popen=start,
        DEVNULL=subprocess.DEVNULL,
        PIPE=subprocess.PIPE,
        TimeoutExpired=subprocess.TimeoutExpired,
    )


def start(argv: Sequence[str], **options: Any) -> Any:
    """Fork what can be forked, and start the rest."""
    return (Forked if argv[2] in CHILDREN else subprocess.Popen)(argv, **options)


def main() -> None:
    how, name, place, num_processes, *overrides = sys.argv[1:]
    folder, total = Path(place), int(num_processes)
    configs = Path(harness.__file__).resolve().parents[1] / "experiments"
    config = compose_experiment([f"experiment={name}", *overrides], config_dir=configs)
    if how == "forked":
        prepare_to_fork(config.model["family"])
    # A record holds some processes, so that there may be several of one plan.
    num_records = -(-total // MAX_REALIZATIONS)
    listed = along_axes(settings_of(config), Axes(), total // num_records)
    with Progress() as progress:
        cases = freeze_cases(
            listed, folder=folder / "plans", cache=folder / "cache", progress=progress.update
        )
        base = RunRequest(
            experiment=name,
            plan_path=folder,
            plan_digest=None,
            store=folder / "store",
            cache=folder / "cache",
            device=device_request(config),
        )
        _, study = localize(base, cases * num_records, Arming(), progress)
    tables = [case_tables(Store(base.store), study, number) for number in range(num_records)]
    matrix = merged(tables)
    found = {
        "audits": [case["audit"] for case in study.parameters["cases"]],
        "states": [case["state"] for case in study.findings["cases"]],
        "unarmed": [case["armed_equals_unarmed"] for case in study.findings["cases"]],
        "num_trials": len(matrix.trials),
        "num_boundaries": len(matrix.boundaries),
        "varying": [matrix.boundaries[place].label for place in matrix.varying()],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""Audited runs of the smallest experiments on the device, through the command line alone."""

import json
import os
import signal
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.budget import Budget

EXPERIMENTS = ("tiny_llama", "tiny_gemma_hybrid", "tiny_qwen_nvfp4")
ON_GPU = (
    "device=cuda",
    "determinism.kernel_set=triton/1",
    "determinism.batch_invariant=true",
    "+workload.decode_mode=recorded",
    "realization.unplanned_device_bytes=67108864",
    "realization.unplanned_host_bytes=33554432",
)
"""On a GPU graphs hold memory, and its libraries grow the host's heap."""
LEAST_SECONDS = 30.0
"""With less left, no run is begun."""
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Audited:
    """How one run ended."""

    experiment: str
    exit_code: int
    text: str
    """Its last line, or what went wrong."""


def run(experiment: str, folder: Path, budget: Budget, *, dry: bool) -> Audited:
    """Freeze a plan for the device, run it and have it audited; into a store in ``folder``.

    Args:
        experiment: Its name.
        folder: Where plan, store and cache are.
        budget: At whose end it is ended.
        dry: Whether it is run on the simulated accelerator.

    Raises:
        OutOfTimeError: When too little time is left to begin.
    """
    left = budget.require(LEAST_SECONDS)
    plan = folder / f"{experiment}.json"
    overrides = ("+workload.decode_mode=recorded",) if dry else ON_GPU
    derive = ("plan", "derive", f"experiment={experiment}", *overrides, "--out", str(plan))
    derived = _harness(left, *derive)
    if derived.returncode:
        return _audited(experiment, derived)
    store, cache = f"store={folder / 'store'}", f"cache={folder / 'cache'}"
    done = _harness(max(budget.left, 0), "run", f"plan={plan}", store, cache, "--json")
    return _audited(experiment, done)


def keep(folder: Path, archive: Path) -> None:
    """Pack plans and records; what a run fetched is left out."""
    with tarfile.open(archive, "w:gz") as packed:
        for path in sorted(folder.iterdir()):
            if path.name != "cache":
                packed.add(path, arcname=path.name)


def _harness(seconds: float, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "harness", *arguments]
    # In a group of its own, so that its children end with it.
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        start_new_session=True,
    )
    try:
        output, errors = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        output, errors = started.communicate()
        errors += f"ended after {seconds:.0f} s, as no time was left"
    return subprocess.CompletedProcess(command, started.returncode, output, errors)


def _audited(experiment: str, done: "subprocess.CompletedProcess[str]") -> Audited:
    try:
        summary: dict[str, Any] = json.loads(done.stdout)
        text = "; ".join([str(summary["status"]), *summary["failed_checks"], *summary["problems"]])
    except (ValueError, KeyError, TypeError):
        text = done.stderr.strip() or done.stdout.strip()
    return Audited(experiment=experiment, exit_code=done.returncode, text=text[-400:])

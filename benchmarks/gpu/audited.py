"""Audited runs of the smallest experiments on the device, through the command line alone."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

EXPERIMENTS = ("tiny_llama", "tiny_gemma_hybrid", "tiny_qwen_nvfp4")
ON_GPU = (
    "device=cuda",
    "determinism.kernel_set=triton/1",
    "determinism.batch_invariant=true",
    "+workload.decode_mode=recorded",
    "realization.unplanned_device_bytes=67108864",
    "realization.unplanned_host_bytes=8388608",
)
"""On a GPU the graphs hold memory, and its libraries grow the host's heap."""


@dataclass(frozen=True, kw_only=True)
class Audited:
    """How one run ended."""

    experiment: str
    exit_code: int
    text: str
    """Its last line, or what went wrong."""


def run(experiment: str, folder: Path, *, dry: bool) -> Audited:
    """Freeze a plan for the device, run it and have it audited; into a store in ``folder``."""
    plan = folder / f"{experiment}.json"
    overrides = ("+workload.decode_mode=recorded",) if dry else ON_GPU
    derived = _harness("plan", "derive", f"experiment={experiment}", *overrides, "--out", str(plan))
    if derived.returncode:
        return _audited(experiment, derived)
    store, cache = f"store={folder / 'store'}", f"cache={folder / 'cache'}"
    return _audited(experiment, _harness("run", f"plan={plan}", store, cache, "--json"))


def _harness(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _audited(experiment: str, done: "subprocess.CompletedProcess[str]") -> Audited:
    try:
        text = str(json.loads(done.stdout)["status"])
    except (ValueError, KeyError):
        text = (done.stderr.strip() or done.stdout.strip())[-400:]
    return Audited(experiment=experiment, exit_code=done.returncode, text=text)

"""Who takes part: which process runs a contender, what it loads and what it is asked.

Knows scripts, environments and arguments; measures nothing.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.environments import Unavailable
from harness.run.processes import child_environment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MACHINE = "machine"
PEERS = ("transformers", "llama.cpp", "vllm")
_SCRIPTS = {"transformers": "transformers", "llama.cpp": "llama_cpp", "vllm": "vllm"}


@dataclass(frozen=True, kw_only=True)
class Process:
    """One worker."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    load: Mapping[str, Any]
    """Arguments of its ``load``."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One line of the table."""

    process: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """What ``generate`` is told beside prompt and steps."""


def script(name: str, python: str | Path = sys.executable) -> tuple[str, ...]:
    """The command of a worker; the folder that Python sees first is that of the workers."""
    return str(python), str(HERE / "workers" / f"with_{name}.py")


def machine(threads: int) -> Process:
    """Measures the limits."""
    return Process(
        argv=script("machine"), environment=child_environment(threads), load={"threads": threads}
    )


def harness(plan: Path, checkpoint: Path, threads: int) -> Process:
    """Ours, with a producer's own environment variables."""
    return Process(
        argv=script("harness"),
        environment=child_environment(threads),
        load={"plan": str(plan), "checkpoint": str(checkpoint)},
    )


def peer(
    name: str, python: Path, checkpoint: Path, *, dtype: str, threads: int, positions: int
) -> Process:
    """A peer, in its own environment; ``checkpoint`` is in the form that it reads."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
    # What a peer compiles for itself is kept beside it.
    cache = str(python.parent.parent / "cache")
    kept |= {"VLLM_CACHE_ROOT": cache, "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
    return Process(
        argv=script(_SCRIPTS[name], python),
        environment=kept | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
        load={
            "checkpoint": str(checkpoint),
            "dtype": dtype,
            "threads": threads,
            "positions": positions,
        },
    )


def run_harness(*arguments: str) -> str:
    """Run one of the project's own commands; returns what it printed.

    Raises:
        Unavailable: When it failed, with its message.
    """
    done = subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Unavailable(f"`harness {arguments[0]}` exits by {done.returncode}: {lines[0]}")
    return done.stdout.strip()


def derive_plan(
    path: Path,
    prompt: Sequence[int],
    *,
    dtype: str,
    kernel_set: str,
    invariant: bool,
    steps: int,
    threads: int,
    more: Sequence[str] = (),
) -> Path:
    """Freeze the quickstart's plan anew, for the benchmark's workload and settings.

    Args:
        more: Further overrides, as the command takes them.
    """
    overrides = {
        "determinism.dtype": dtype,
        "determinism.kernel_set": kernel_set,
        "determinism.batch_invariant": str(invariant).lower(),
        "determinism.num_threads": threads,
        "device.simulated_vram_bytes": 4 << 30,
        "device.system_ram_limit_bytes": 4 << 30,
        "workload.prompt_text": "null",
        "workload.chat": "false",
        "workload.prompt_token_ids": str(list(prompt)).replace(" ", ""),
        "workload.chunk_rows": len(prompt),
        "workload.decode_steps": steps,
        "workload.repetitions": 1,
        "workload.fresh_realizations": 1,
        "workload.max_positions": len(prompt) + steps,
    }
    settings = [*(f"{name}={value}" for name, value in overrides.items()), *more]
    run_harness("plan", "derive", "experiment=quickstart", *settings, "--out", str(path))
    return path

"""Everything that a GPU can show, by one command: correctness, repeats, graphs, speed, records.

    python benchmarks/gpu_check.py                 # on a GPU, within 8 minutes
    python benchmarks/gpu_check.py --dry-run       # the same lines on the host, small, in minutes

Prints one table last, and writes it to the folder that ``--out`` names, as text and as JSON, beside
the audited records. Writes after every row, so that a check that is stopped loses nothing it had.
When time runs short it repeats less and leaves out what is optional, and says so.

Exit codes: 0 all is right; 1 something was found wrong (speed alone is never wrong); 3 nothing was
found wrong, but not everything was executed.

Beside a GPU image's torch (2.11 or newer), triton, numpy, pyarrow and safetensors it needs the
wheels rfc8785, jsonschema, hydra-core, pandas, rich, tokenizers and nvidia-ml-py, with what these
need; transformers is measured where it is installed.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu import audited, cases, invariance, models
from benchmarks.gpu.budget import Budget, OutOfTimeError
from benchmarks.gpu.case import DRY, FULL, Case, Outputs, Sizes
from benchmarks.gpu.device import Device, Limits
from benchmarks.gpu.table import lines, num_wrong
from harness.plan.records import Determinism
from harness.run.conditions import apply_determinism
from harness.run.processes import GPU_SETTINGS

SECONDS = 450.0
"""In all: less than 8 minutes, the start and the end of the process included."""
REPEATS, LEAST_REPEATS = 100, 10
# Shares of all time: with less left, what is optional is left out, and then what is not.
FOR_REPEATS, FOR_KERNELS = 0.65, 0.45
FOR_PEERS, FOR_MODELS = 0.4, 0.25
AUDITED_AT_ONCE, CORES_OF_ONE = 3, 4
"""Each run compiles its kernels first; that needs cores, and little of the device."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What one kernel's case showed."""

    name: str
    error: float
    """Largest, as a share of the reference's largest magnitude."""
    is_correct: bool
    num_repeats: int
    num_different: int
    """Repeats whose bits differ from the first."""
    seconds: float
    """Of the launches alone, where they can be recorded; else of a call."""
    called_s: float
    """Of a call with its checks, as its caller sees it."""
    share_of_limit: float
    """Of the copy bandwidth or of the matrix rate, whichever it is nearer to."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What every part of a check is told."""

    device: Device
    kernel_set: str
    limits: Limits
    budget: Budget
    dry: bool


def check(case: Case, setting: Setting) -> Checked:
    """Compare with the reference, repeat, and time."""
    device, kernel_set = setting.device, setting.kernel_set
    expected = case.run("torch-reference/1")
    first = case.run(kernel_set)
    error = max(_error(one, other) for one, other in zip(first, expected, strict=True))
    repeats = different = 0
    while repeats < (3 if setting.dry else REPEATS):
        if repeats >= LEAST_REPEATS and not setting.budget.keeps(FOR_REPEATS):
            break
        repeats += 1
        different += not _equal(case.run(kernel_set), first)
    timed = 3 if setting.dry else 20
    called = seconds = device.seconds(lambda: case.run(kernel_set), timed)
    if case.launch is not None:
        seconds = device.launch_seconds(case.launch(kernel_set), timed)
    shares = (
        case.num_bytes / seconds / setting.limits.copy_bytes_per_sec,
        case.num_flop / seconds / setting.limits.matrix_flop_per_sec,
    )
    return Checked(
        name=case.name,
        error=error,
        is_correct=error <= case.tolerance,
        num_repeats=repeats,
        num_different=different,
        seconds=seconds,
        called_s=called,
        share_of_limit=max(shares),
    )


def _error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    gap = (actual.double() - expected.double()).abs().max() if actual.numel() else torch.zeros(())
    scale = expected.double().abs().max() if expected.numel() else torch.ones(())
    return float(gap / scale.clamp_min(torch.finfo(torch.float64).tiny))


def _equal(some: Outputs, others: Outputs) -> bool:
    return all(
        torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        for one, other in zip(some, others, strict=True)
    )


class Look:
    """Looks at everything, in order, and keeps what was found so far."""

    def __init__(self, save: Callable[[dict[str, Any]], None], setting: Setting) -> None:
        """Args: save: called with all that was found so far; setting: of the whole check."""
        dry = setting.dry
        self._save = save
        self._setting = setting
        self.found: dict[str, Any] = {
            "schema": "harness.gpu-check/2",
            "label": "a dry run on the host: no figure of a GPU" if dry else "measured",
            "device": setting.device.description(),
            "torch": torch.__version__,
            "kernel_set": setting.kernel_set,
            "limits": asdict(setting.limits),
            "kernels": [],
            "invariance": [],
            "models": [],
            "audited": [],
            "problems": [],
            "not_executed": [],
            "seconds": 0.0,
        }

    @torch.inference_mode()
    def run(self, folder: Path) -> dict[str, Any]:
        """Look at everything; records are made in ``folder``."""
        setting = self._setting
        device, kernel_set, dry = setting.device, setting.kernel_set, setting.dry
        sizes = DRY if dry else FULL
        for case in self._cases(sizes):
            self._add("kernels", case.name, partial(check, case, setting), FOR_KERNELS)
        self._give_back()
        for name, cost in invariance.costs(sizes, device, kernel_set, 3 if dry else 20):
            self._add("invariance", name, cost, FOR_KERNELS)
        self._give_back()
        for family in models.documents(dry=dry):
            measure = partial(models.measure, with_peer=setting.budget.keeps(FOR_PEERS))
            measure = partial(measure, family, device, kernel_set, dry=dry)
            self._add("models", family, measure, FOR_MODELS)
            self._give_back()
        with ThreadPoolExecutor(_at_once()) as pool:
            run = partial(audited.run, folder=folder, budget=setting.budget, dry=dry)
            started = {name: pool.submit(run, name) for name in audited.EXPERIMENTS}
            for name, run_of in started.items():
                self._add("audited", name, run_of.result)
        self._kept()
        return self.found

    def _cases(self, sizes: Sizes) -> Iterator[Case]:
        """Every case that can be made: after a fault of the device none can."""
        listed = cases.cases(sizes, self._setting.device.device)
        while True:
            try:
                case = next(listed, None)
            except Exception as error:  # whatever keeps it from being made is told
                self._is_problem("the cases that follow", error)
                return
            if case is None:
                return
            yield case

    def _give_back(self) -> None:
        # A device that has failed fails again here; what runs in other processes may still pass.
        try:
            self._setting.device.give_back()
        except Exception as error:  # libraries of a device raise of any class
            self._is_problem("memory is given back", error)

    def _is_problem(self, name: str, error: Exception) -> None:
        self.found["problems"].append(f"{name}: {type(error).__name__}: {error}"[:400])

    def _add(
        self, part: str, name: str, look_at: Callable[[], Any], share_to_keep: float = 0.0
    ) -> None:
        # One row that cannot be had must not lose the others, nor those that were had before.
        try:
            self._setting.budget.require(share_to_keep * self._setting.budget.seconds)
            self.found[part].append(asdict(look_at()))
        except OutOfTimeError as error:
            self.found["not_executed"].append(f"{name}: {error}")
        except Exception as error:  # whatever it raises is the row's finding
            self._is_problem(name, error)
        self._kept()
        print(f"{self.found['seconds']:.0f} s {part}: {name}", file=sys.stderr, flush=True)

    def _kept(self) -> None:
        self.found["seconds"] = self._setting.budget.spent
        self._save(self.found)


def _at_once() -> int:
    """How many audited runs are made at once."""
    return max(1, min(AUDITED_AT_ONCE, (os.cpu_count() or 1) // CORES_OF_ONE))


def start(*, dry: bool, seconds: float) -> Setting:
    """Find the device, set what determinism asks for, and measure the device's limits."""
    budget = Budget(seconds=seconds)
    os.environ.update(GPU_SETTINGS)
    kernel_set = "torch-cpu-invariant/1" if dry else "triton/1"
    device = Device(torch.device("cpu" if dry else "cuda:0"))
    apply_determinism(
        Determinism(
            dtype="bfloat16",
            num_threads=torch.get_num_threads(),
            deterministic_algorithms=True,
            batch_invariant=True,
            kernel_set=kernel_set,
        )
    )
    return Setting(
        device=device,
        kernel_set=kernel_set,
        limits=device.limits(3 if dry else 20),
        budget=budget,
        dry=dry,
    )


def main() -> int:
    """Look, write and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="on the host, small")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"), help="a folder")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that it may take in all")
    args = parser.parse_args()
    if not args.dry_run and not torch.cuda.is_available():
        print("not executed: torch sees no GPU here; --dry-run shows that every line works")
        return 3
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)

    def save(so_far: dict[str, Any]) -> None:
        text = json.dumps(so_far, indent=2, sort_keys=True)
        (out / "gpu_check.json").write_text(text + "\n")
        (out / "gpu_check.txt").write_text("\n".join(lines(so_far)) + "\n")

    look = Look(save, start(dry=args.dry_run, seconds=args.seconds))
    with tempfile.TemporaryDirectory() as folder:
        found = look.run(Path(folder))
        audited.keep(Path(folder), out / "gpu_check_records.tar.gz")
    print("\n".join(lines(found)))
    if num_wrong(found):
        return 1
    return 3 if found["not_executed"] else 0


if __name__ == "__main__":
    sys.exit(main())

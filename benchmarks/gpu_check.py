"""Everything that a GPU can show, by one command: correctness, repeats, graphs, speed, records.

    python benchmarks/gpu_check.py                 # on a GPU, within 8 minutes
    python benchmarks/gpu_check.py --dry-run       # the same lines on the host, small, in a minute

Prints one table last and writes JSON. Exits by 1 where something was found wrong; speed alone is
never wrong. Beside a GPU image's torch, triton, numpy, pyarrow and safetensors it needs the wheels
rfc8785, jsonschema, hydra-core, pandas, rich, tokenizers and nvidia-ml-py; transformers is measured
where it is installed.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu import audited, cases, models
from benchmarks.gpu.device import Device, Limits
from harness.plan.records import Determinism
from harness.run.conditions import apply_determinism


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
    share_of_limit: float
    """Of the copy bandwidth or of the matrix rate, whichever it is nearer to."""


def check(case: cases.Case, device: Device, kernel_set: str, limits: Limits, dry: bool) -> Checked:
    """Compare with the reference, repeat, and time."""
    repeats = 3 if dry else 100
    expected = case.run("torch-reference/1")
    first = case.run(kernel_set)
    error = max(_error(one, other) for one, other in zip(first, expected, strict=True))
    different = sum(not _equal(case.run(kernel_set), first) for _ in range(repeats))
    seconds = device.seconds(lambda: case.run(kernel_set), 3 if dry else 20)
    shares = (
        case.num_bytes / seconds / limits.copy_bytes_per_sec,
        case.num_flop / seconds / limits.matrix_flop_per_sec,
    )
    return Checked(
        name=case.name,
        error=error,
        is_correct=error <= case.tolerance,
        num_repeats=repeats,
        num_different=different,
        seconds=seconds,
        share_of_limit=max(shares),
    )


def _error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    gap = (actual.double() - expected.double()).abs().max() if actual.numel() else torch.zeros(())
    scale = expected.double().abs().max() if expected.numel() else torch.ones(())
    return float(gap / scale.clamp_min(torch.finfo(torch.float64).tiny))


def _equal(some: cases.Outputs, others: cases.Outputs) -> bool:
    return all(
        torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        for one, other in zip(some, others, strict=True)
    )


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The table."""
    yield f"{'kernel':<28} {'error':>9} {'repeats differ':>15} {'us':>10} {'of limit':>9}"
    for row in found["kernels"]:
        ok = "" if row["is_correct"] and not row["num_different"] else "  WRONG"
        yield (
            f"{row['name']:<28} {row['error']:>9.1e} "
            f"{row['num_different']:>8}/{row['num_repeats']:<6} "
            f"{row['seconds'] * 1e6:>10.1f} {row['share_of_limit']:>9.1%}{ok}"
        )
    yield f"{'family':<28} {'eager':>9} {'replayed':>9} {'sentinels':>9} {'transformers':>13} tok/s"
    for row in found["models"]:
        peer = row["transformers_s"]
        other = f"{1 / peer:>13.1f}" if peer else f"{'not executed':>13}"
        graph = "graph = eager" if row["graph_equals_eager"] else "graph differs  WRONG"
        yield (
            f"{row['family']:<28} {1 / row['eager_s']:>9.1f} {1 / row['replayed_s']:>9.1f} "
            f"{1 / row['guarded_s']:>9.1f} {other}  {graph}"
        )
    for row in found["audited"]:
        ok = "" if row["exit_code"] == 0 else "  WRONG"
        yield f"{row['experiment']:<28} exit code {row['exit_code']}: {row['text']}{ok}"
    yield from (f"{problem}  WRONG" for problem in found["problems"])
    limits = found["limits"]
    yield (
        f"{found['device']}: copy {limits['copy_bytes_per_sec'] / 1e9:.1f} GB/s, bfloat16 products "
        f"{limits['matrix_flop_per_sec'] / 1e12:.2f} Tflop/s; batch invariance: "
        f"{found['batch_invariance']}; {found['seconds']:.0f} s in all"
    )


def num_wrong(found: dict[str, Any]) -> int:
    """How many rows found something wrong."""
    wrong = [not row["is_correct"] or row["num_different"] > 0 for row in found["kernels"]]
    wrong += [not row["graph_equals_eager"] for row in found["models"]]
    wrong += [row["exit_code"] != 0 for row in found["audited"]]
    return sum(wrong) + len(found["problems"])


@torch.inference_mode()
def look(save: Callable[[dict[str, Any]], None], *, dry: bool) -> dict[str, Any]:
    """Look at everything, in order; ``save`` is called with all that was found so far."""
    began = time.perf_counter()
    device = Device(torch.device("cpu" if dry else "cuda:0"))
    kernel_set = "torch-cpu/1" if dry else "triton/1"
    apply_determinism(
        Determinism(
            dtype="bfloat16",
            num_threads=torch.get_num_threads(),
            deterministic_algorithms=True,
            batch_invariant=not dry,
            kernel_set=kernel_set,
        )
    )
    limits = device.limits(3 if dry else 20)
    sizes = cases.DRY if dry else cases.FULL
    found: dict[str, Any] = {
        "schema": "harness.gpu-check/1",
        "label": "a dry run on the host: nothing here is a figure of a GPU" if dry else "measured",
        "device": device.description(),
        "torch": torch.__version__,
        "kernel_set": kernel_set,
        "limits": asdict(limits),
        "batch_invariance": "not measured apart: one set runs here, and declares it",
        "kernels": [],
        "models": [],
        "audited": [],
        "problems": [],
    }

    def add(part: str, name: str, look_at: Callable[[], Any]) -> None:
        # One row that cannot be had must not lose the others, nor those that were had before.
        try:
            found[part].append(asdict(look_at()))
        except Exception as error:
            found["problems"].append(f"{name}: {type(error).__name__}: {error}"[:400])
        found["seconds"] = time.perf_counter() - began
        save(found)
        print(f"{part}: {name}", file=sys.stderr, flush=True)

    for case in cases.cases(sizes, device.device):
        add("kernels", case.name, partial(check, case, device, kernel_set, limits, dry))
    for family in models.documents(dry=dry):
        add("models", family, partial(models.measure, family, device, kernel_set, dry=dry))
    with tempfile.TemporaryDirectory() as folder:
        for name in audited.EXPERIMENTS:
            add("audited", name, partial(audited.run, name, Path(folder), dry=dry))
    return found


def main() -> int:
    """Look, write and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="on the host, small")
    parser.add_argument("--json", type=Path, default=Path("runs/gpu_check.json"))
    args = parser.parse_args()
    if not args.dry_run and not torch.cuda.is_available():
        print("not executed: torch sees no GPU here; --dry-run shows that every line works")
        return 3
    args.json.parent.mkdir(parents=True, exist_ok=True)

    def save(so_far: dict[str, Any]) -> None:
        args.json.write_text(json.dumps(so_far, indent=2, sort_keys=True) + "\n")

    found = look(save, dry=args.dry_run)
    print("\n".join(lines(found)))
    return 1 if num_wrong(found) else 0


if __name__ == "__main__":
    sys.exit(main())

"""What observing every boundary of every layer costs: armed steps beside unarmed ones.

Contenders take turns in one process, over one executor and random weights of SmolLM2-135M's shapes.
``tapped`` has boundaries that nobody digests: it is what slices copied before and after a write
cost. The aim is for xxh3-128: less than 10 % of decode and 25 % of prefill.

    python -m benchmarks.boundaries [--threads 2] [--dtype bfloat16] [--json out.json]
"""

import argparse
import gc
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.random_model import SMOLLM2_135M, Timings, make_request, run, write_random
from harness.adapters.llama.layout import LlamaLayout
from harness.adapters.llama.reference import LlamaReference
from harness.realize.adapter import StepOutput
from harness.run.conditions import apply_determinism
from harness.state.digest_kinds import digest_function

AIMS = {"decode": 0.10, "prefill": 0.25}
"""Shares of the unarmed time, for xxh3-128."""


class Armed:
    """An executor, every step of which is observed."""

    def __init__(self, executor: Any, act: Callable[[torch.Tensor], object]) -> None:
        self.reset, self.choose = executor.reset, executor.choose
        self._step, self._act = executor.step, act
        self.num_hits = 0

    def step(self, ids: Sequence[int], start: int, *, want_logits: bool) -> StepOutput:
        """As the executor's own, armed."""
        output: StepOutput = self._step(ids, start, want_logits=want_logits, tap=self._tap)
        return output

    def _tap(self, index: int, tensor: torch.Tensor) -> None:
        del index
        self.num_hits += 1
        self._act(tensor)


def shares(timings: dict[str, Timings]) -> dict[str, dict[str, float]]:
    """By contender and phase, the time beyond the unarmed one, as a share of it.

    Of the medians, and of the fastest, which other work on the machine does not reach.
    """
    found: dict[str, dict[str, float]] = {}
    for name, one in timings.items():
        found[name] = {}
        for phase in AIMS:
            mine, plain = getattr(one, phase), getattr(timings["unarmed"], phase)
            found[name][phase] = statistics.median(mine) / statistics.median(plain) - 1
            found[name][f"{phase}_of_fastest"] = min(mine) / min(plain) - 1
    return found


def print_table(summary: dict[str, Any]) -> None:
    names = ("dtype", "threads", "prompt", "decode", "boundaries")
    print(", ".join(f"{name} {summary[name]}" for name in names))
    print(f"{'contender':<10} {'decode':>8} {'fastest':>8} {'prefill':>8} {'fastest':>8}")
    for name, row in summary["shares"].items():
        cells = (row[f"{phase}{of}"] for phase in AIMS for of in ("", "_of_fastest"))
        print(f"{name:<10} " + " ".join(f"{cell:>+8.1%}" for cell in cells))
    aims = ", ".join(f"{share:.0%} of {phase}" for phase, share in AIMS.items())
    print(f"aims for xxh3-128: under {aims}")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, and return the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernel-set", default="torch-cpu/1")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    request = make_request(SMOLLM2_135M, args)
    apply_determinism(request.determinism)
    with tempfile.TemporaryDirectory() as folder:
        write_random(Path(folder), getattr(torch, args.dtype))
        executor = LlamaReference().ordinary(Path(folder), request).executor
    contenders: dict[str, Any] = {
        "unarmed": executor,
        "tapped": Armed(executor, lambda tensor: None),
        "xxh3-128": Armed(executor, digest_function("xxh3-128")),
        "sha256": Armed(executor, digest_function("sha256")),
    }
    timings = {name: Timings() for name in contenders}
    for each in contenders.values():
        run(each, request, Timings())  # first calls allocate
    gc.disable()
    for _ in range(args.rounds):
        for name, each in contenders.items():
            gc.collect()
            run(each, request, timings[name])
    if len({tuple(one.tokens) for one in timings.values()}) != 1:
        raise RuntimeError("an armed run chose other tokens than the unarmed one")
    summary = {
        "schema": "harness.benchmark-boundaries/1",
        **{name: getattr(args, name) for name in ("dtype", "threads", "prompt", "decode")},
        "boundaries": len(LlamaLayout().boundaries(request.config, request.spec)),
        "torch": torch.__version__,
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "shares": shares(timings),
    }
    print_table(summary)
    if args.json is not None:
        args.json.write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n")
    return summary


if __name__ == "__main__":
    main()

"""Decode time over the length of the context, beside what the bytes that a step reads predict.

One long generation, repeated; of each step the least time counts. The prediction is the first
bin's time, and for every later position its keys and values at the memory's bandwidth.

    python -m benchmarks.context --steps 768
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import contenders
from benchmarks.__main__ import model_of, prompt_ids
from benchmarks.worker import Worker

TIMEOUT_S = 400


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Least seconds of every step, and the machine's bandwidth in the same run."""
    checkpoint = Path(contenders.run_harness("checkpoint", "fetch", "experiment=quickstart"))
    prompt = prompt_ids(checkpoint, args.prompt)
    generations, read = [], []
    machine = contenders.machine(args.threads)
    with tempfile.TemporaryDirectory(prefix="benchmark.") as folder:
        plan = contenders.derive_plan(
            Path(folder) / "plan.json",
            prompt,
            dtype=args.dtype,
            kernel_set=args.kernel_set,
            invariant=False,
            steps=args.steps,
            threads=args.threads,
        )
        ours = contenders.harness(plan, checkpoint, args.threads)
        limits, worker = (Worker(each.argv, each.environment) for each in (machine, ours))
        limits.ask("load", TIMEOUT_S, **machine.load)
        worker.ask("load", TIMEOUT_S, **ours.load)
        for _ in range(args.rounds):
            read.append(limits.ask("measure", TIMEOUT_S)["read_bytes_per_sec"])
            answer = worker.ask(
                "generate", TIMEOUT_S, prompt=prompt, decode_steps=args.steps, sentinels=True
            )
            generations.append(answer["decode_s"])
        for each in (limits, worker):
            each.close()
    return {
        "schema": "harness.benchmark-context/1",
        "dtype": args.dtype,
        "kernel_set": args.kernel_set,
        "prompt": args.prompt,
        "step_s": [min(each) for each in zip(*generations, strict=True)],
        "read_bytes_per_sec": statistics.median(read),
        "kv_bytes_per_position": model_of(checkpoint, args.dtype).kv_bytes_per_position,
    }


def rows(found: Mapping[str, Any], size: int) -> list[tuple[int, float, float]]:
    """By bin of ``size`` steps: mean position, median seconds, predicted seconds."""
    steps, start = found["step_s"], found["prompt"]
    bins = [steps[begin : begin + size] for begin in range(0, len(steps) - size + 1, size)]
    medians = [statistics.median(each) for each in bins]
    per_position = found["kv_bytes_per_position"] / found["read_bytes_per_sec"]
    return [
        (start + size * index + size // 2, median, medians[0] + per_position * size * index)
        for index, median in enumerate(medians)
    ]


def table(found: Mapping[str, Any], size: int) -> Iterator[str]:
    """One line a bin."""
    yield f"{found['dtype']}, {found['kernel_set']}, with sentinels"
    yield f"{'positions':>9} {'ms':>8} {'predicted ms':>13} {'gap':>6}"
    for position, measured, predicted in rows(found, size):
        gap = measured / predicted - 1
        yield f"{position:>9} {measured * 1e3:>8.2f} {predicted * 1e3:>13.2f} {gap:>+6.1%}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kernel-set", default="native-cpu/1")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--steps", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bin", type=int, default=128)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    found = measure(args)
    print("\n".join(table(found, args.bin)))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

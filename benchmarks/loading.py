"""From a checkpoint to resident tensors, every byte hashed twice, beside what hashing can do.

Each load is a fresh process, in turn with a measure of the machine. A source byte is hashed when it
is read and compared with the plan's manifest; a resident byte is hashed once more where it lies. So
the time has a floor: both passes at the rate at which all cores together hash.

    python -m benchmarks.loading --rounds 3
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
from benchmarks.worker import Worker

STAGINGS = {
    "whole": (),
    "streaming": ("realization.staging=streaming", f"realization.staging_window_bytes={64 << 20}"),
}
"""How state comes to where it stays: through a whole copy in host memory, or through a window."""
TIMEOUT_S = 120


def measure(rounds: int, threads: int) -> dict[str, Any]:
    """Every way in turn, ``rounds`` times."""
    checkpoint = Path(contenders.run_harness("checkpoint", "fetch", "experiment=quickstart"))
    machine = contenders.machine(threads)
    limits, loads = Worker(machine.argv, machine.environment), {name: [] for name in STAGINGS}
    hashed: list[float] = []
    with tempfile.TemporaryDirectory(prefix="benchmark.") as folder:
        limits.ask("load", TIMEOUT_S, **machine.load)
        for number in range(rounds):
            hashed.append(limits.ask("measure", TIMEOUT_S)["sha256_bytes_per_sec"])
            for name, more in STAGINGS.items():
                plan = Path(folder) / f"{name}.json"
                if not number:
                    contenders.derive_plan(
                        plan,
                        range(1, 9),
                        dtype="bfloat16",
                        kernel_set="torch-cpu/1",
                        invariant=False,
                        steps=1,
                        threads=threads,
                        more=more,
                    )
                ours = contenders.harness(plan, checkpoint, threads)
                worker = Worker(ours.argv, ours.environment)
                loads[name].append(worker.ask("load", TIMEOUT_S, **ours.load))
                worker.close()
    limits.close()
    return {
        "schema": "harness.benchmark-loading/1",
        "threads": threads,
        "sha256_bytes_per_sec": hashed,
        "loads": loads,
    }


def figures(loads: Sequence[Mapping[str, Any]], sha256_bytes_per_sec: float) -> dict[str, float]:
    """Medians of one way's loads."""
    seconds = statistics.median(each["load_s"] for each in loads)
    first = loads[0]
    passes = first["source_bytes"] + first["resident_bytes"]
    beyond = (
        each["rss_peak_bytes"] - each["rss_before_bytes"] - each["resident_bytes"] for each in loads
    )
    return {
        "seconds": seconds,
        "bytes_per_sec": first["source_bytes"] / seconds,
        "share_of_floor": passes / sha256_bytes_per_sec / seconds,
        "host_bytes_beyond_residents": statistics.median(beyond),
    }


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """One line a way."""
    rate = statistics.median(found["sha256_bytes_per_sec"])
    yield f"SHA-256 on {found['threads']} threads: {rate / 1e9:.2f} GB/s"
    yield f"{'staging':<10} {'seconds':>8} {'GB/s':>6} {'of the floor':>13} {'MiB beyond':>11}"
    for name, loads in found["loads"].items():
        row = figures(loads, rate)
        yield (
            f"{name:<10} {row['seconds']:>8.2f} {row['bytes_per_sec'] / 1e9:>6.2f} "
            f"{row['share_of_floor']:>13.0%} {row['host_bytes_beyond_residents'] / 2**20:>11.1f}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    found = measure(args.rounds, args.threads)
    print("\n".join(table(found)))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

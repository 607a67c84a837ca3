"""How long commands take until they have something to say: help, an audit, the first token.

Each command runs several times as a person runs it, everything cached; the least time is the one
with the least of the machine's other work in it. The way to the first token is shown stage by
stage, from the run's own progress lines.

    python -m benchmarks.starting --repeats 5
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HARNESS = (sys.executable, "-m", "harness")
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
"""Without it each start would compile our own modules anew, which no installed command does."""
AIMS_S = {"help": 0.2, "verify": 1.0, "first token": 4.0}
FIRST_STEP = "realization 1/2: prefill and decode"


def seconds_of(command: Sequence[str]) -> float:
    """One run of a command that must succeed."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
    return time.perf_counter() - began


def first_token(command: Sequence[str]) -> tuple[float, list[tuple[str, float]]]:
    """Seconds until the first token of a run, and when each stage before it began.

    Raises:
        RuntimeError: When the run did not pass or said nothing of its steps.
    """
    stages: list[tuple[str, float]] = []
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stderr:
            stages.append((line.strip(), time.perf_counter() - began))
        answer = process.stdout.read()
    at = dict(stages).get(FIRST_STEP)
    if process.returncode or at is None:
        raise RuntimeError(f"exit code {process.returncode}; said {[text for text, _ in stages]}")
    return at + float(json.loads(answer)["ttft_ns"]) / 1e9, [
        stage for stage in stages if stage[1] <= at
    ]


def measure(repeats: int) -> dict[str, Any]:
    """Every command, in turn, ``repeats`` times."""
    found: dict[str, list[float]] = {name: [] for name in ("python", *AIMS_S)}
    runs = []
    for _ in range(repeats):
        found["python"].append(seconds_of([sys.executable, "-c", "pass"]))
        found["help"].append(seconds_of([*HARNESS, "--help"]))
        command = [*HARNESS, "evidence", "verify", "evidence", "--plans", "plans"]
        found["verify"].append(seconds_of(command))
        seconds, stages = first_token([*HARNESS, "run", "experiment=quickstart"])
        found["first token"].append(seconds)
        runs.append((seconds, stages))
    return {"schema": "harness.benchmark-starting/1", "seconds": found, "stages": min(runs)[1]}


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """One line a command, and the stages of the fastest first token."""
    yield f"{'':<14} {'least s':>8} {'median s':>9} {'aim s':>6}"
    for name, seconds in found["seconds"].items():
        aim = f"{AIMS_S[name]:>6.1f}" if name in AIMS_S else ""
        yield f"{name:<14} {min(seconds):>8.2f} {statistics.median(seconds):>9.2f} {aim}"
    for text, at in found["stages"]:
        yield f"  {at:>6.2f} s  {text}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    found = measure(args.repeats)
    print("\n".join(table(found)))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

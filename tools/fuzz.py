"""Feeds broken plans, manifests, statements, tables and safetensors headers to their parsers.

    python -m tools.fuzz [--seconds S] [--seed N] [--target NAME]...

Each target gets its share of the time in a child process of bounded memory. Every input is a sound
one, broken at places that a seeded generator chooses; the seed is printed, and one seed gives the
same inputs in the same order. A parser accepts or raises an expected error; anything else (a
traceback, an input that takes too long, a child that dies or needs too much memory) is a failure:
the input is written to ``runs/fuzz/`` and the exit code is 1.
"""

import argparse
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.checkpoint.header import read_header_by
from harness.errors import HarnessError
from harness.evidence.predicates import SourceIdentity
from harness.evidence.statement import parse_statement
from harness.evidence.studies import StudyPredicate, encode_study, parse_study, study_statement
from harness.evidence.tables import decode
from harness.plan.load import examine_plan
from harness.plan.manifest import parse_manifest
from tools.mutations import mutated

ROOT = Path(__file__).resolve().parents[1]
FAILURES = ROOT / "runs" / "fuzz"
INPUT_SECONDS = 10
"""One input that takes longer hangs."""
MEMORY_BYTES = 2 << 30
"""Address space that a child may take beyond what its imports took."""
MAX_SAMPLE_BYTES = 200_000
"""Longer files take the time of many short ones."""

Parse = Callable[[bytes], object]


def _header(data: bytes) -> object:
    def read(offset: int, num_bytes: int) -> bytearray:
        return bytearray(data[offset : offset + num_bytes])

    return read_header_by(read, size_bytes=len(data), where="input")


def _table(data: bytes) -> object:
    return decode("steps", data, where="input")


PARSERS: dict[str, Parse] = {
    "plan": lambda data: examine_plan(data, where="input"),
    "manifest": lambda data: parse_manifest(data, where="input"),
    "statement": lambda data: parse_statement(data, where="input"),
    "study": lambda data: parse_study(data, where="input"),
    "table": _table,
    "header": _header,
}


def samples(target: str) -> list[bytes]:
    """Sound inputs of a target, in a fixed order."""
    evidence = ROOT / "evidence"
    if target == "header":
        entry = b'"%s":{"dtype":"F32","shape":[2,3],"data_offsets":[%d,%d]}'
        text = b"{" + b",".join(entry % (b"ab"[i : i + 1], 24 * i, 24 * i + 24) for i in (0, 1))
        text += b',"__metadata__":{"format":"pt"}}'
        return [len(text).to_bytes(8, "little") + text + bytes(48)]
    if target == "table":
        return _steps(evidence)
    if target == "study":
        return [encode_study(_study(evidence))]
    folders = {
        "plan": [ROOT / "plans"],
        "manifest": [ROOT / "plans" / "manifests"],
        "statement": [evidence / "records", evidence / "verdicts"],
    }
    paths = [path for folder in folders[target] for path in sorted(folder.glob("*.json*"))]
    small = [path for path in paths if path.stat().st_size <= MAX_SAMPLE_BYTES]
    return [path.read_bytes() for path in small if path.suffix != ".sha256"]


def _steps(evidence: Path) -> list[bytes]:
    found = []
    for path in sorted((evidence / "tables").glob("*.parquet")):
        try:
            _table(path.read_bytes())
        except HarnessError:
            continue
        found.append(path.read_bytes())
    return found


def _study(evidence: Path) -> dict[str, Any]:
    record = min((evidence / "records").glob("*.json")).stem
    return study_statement(
        StudyPredicate(
            kind="replay",
            experiment="sample",
            parameters={"cases": [{"point": {"rows": 7}, "record": 0}]},
            records=(f"sha256:{record}",),
            tables=(),
            tensors=(),
            findings={"status": "reproduced"},
            source=SourceIdentity(),
            command=("harness", "replay"),
            started_at="2026-01-01T00:00:00Z",
            ended_at="2026-01-01T00:00:01Z",
        )
    )


def fuzz_input(target: str, seed: int, number: int, sound: Sequence[bytes]) -> bytes:
    """Input ``number`` of a target, the same for the same seed."""
    return mutated(random.Random(f"{seed}/{target}/{number}"), sound)


def child(target: str, seed: int, seconds: float, progress: Path) -> int:
    """Parse inputs until the time is over; returns 1 after an unexpected exception."""
    parse, sound = PARSERS[target], samples(target)
    for data in sound:
        parse(data)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    # Ends the process wherever it is, also inside a library that never returns.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    number, end = 0, time.monotonic() + seconds
    with progress.open("r+b", buffering=0) as file:
        while time.monotonic() < end:
            file.seek(0)
            file.write(number.to_bytes(8, "little"))
            data = fuzz_input(target, seed, number, sound)
            signal.setitimer(signal.ITIMER_REAL, INPUT_SECONDS)
            try:
                parse(data)
            except HarnessError:
                pass
            except BaseException:
                traceback.print_exc()
                return 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            number += 1
    return 0


def run(target: str, seed: int, seconds: float) -> bool:
    """Fuzz one target in a child process; says what happened, and returns whether all was well."""
    with tempfile.NamedTemporaryFile() as progress:
        progress.write(bytes(8))
        progress.flush()
        arguments = ["--child", progress.name, "--target", target]
        arguments += ["--seed", str(seed), "--seconds", str(seconds)]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tools.fuzz", *arguments],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=seconds + 6 * INPUT_SECONDS,
                check=False,
            )
            code, told = done.returncode, done.stderr
        except subprocess.TimeoutExpired:
            code, told = -signal.SIGKILL, "did not end"
        number = int.from_bytes(Path(progress.name).read_bytes(), "little")
    if code == 0:
        print(f"{target}: {number + 1} inputs, seed {seed}: none broke the parser", flush=True)
        return True
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else "raised"
    path = FAILURES / f"{target}-{seed}-{number}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(fuzz_input(target, seed, number, samples(target)))
    print(f"{target}: input {number} of seed {seed} {how}; it is in {path}\n{told}", flush=True)
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz the chosen targets, each for its share of the time; returns the exit code."""
    parser = argparse.ArgumentParser(description="Feed broken inputs to every parser.")
    parser.add_argument("--seconds", type=float, default=60.0, help="of all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", choices=sorted(PARSERS))
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    targets = options.target or list(PARSERS)
    if options.child is not None:
        return child(targets[0], options.seed, options.seconds, options.child)
    share = options.seconds / len(targets)
    sound = [run(target, options.seed, share) for target in targets]
    return 0 if all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())

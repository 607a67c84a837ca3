"""``python -m benchmarks``: the comparison in bfloat16 and float32, each in a process of its own.

Random weights of SmolLM2-135M's shapes unless ``--checkpoint FOLDER`` names trained ones.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DTYPES = ("bfloat16", "float32")


def main() -> int:
    """Run each comparison in turn; returns the first exit code that is not 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("runs/benchmark.json"))
    args = parser.parse_args()
    results: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            path = Path(folder) / f"{dtype}.json"
            command = [sys.executable, "-m", "benchmarks.decode", "--dtype", dtype]
            command += ["--rounds", str(args.rounds), "--json", str(path)]
            if args.checkpoint is not None:
                command += ["--checkpoint", str(args.checkpoint)]
            code = subprocess.run(command, check=False).returncode
            if code:
                return code
            results.append(json.loads(path.read_text()))
            print()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    print(f"written to {args.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

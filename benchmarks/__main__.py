"""``python -m benchmarks [FILE]``: the comparison in bfloat16 and float32; JSON into FILE.

Random weights of SmolLM2-135M's shapes unless ``--checkpoint FOLDER`` names trained ones.
"""

import argparse
import json
from pathlib import Path

from benchmarks import decode


def main() -> None:
    """Run each comparison in turn."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("runs/benchmark.json"))
    args = parser.parse_args()
    common = ["--rounds", str(args.rounds)]
    if args.checkpoint is not None:
        common += ["--checkpoint", str(args.checkpoint)]
    results = []
    for dtype in ("bfloat16", "float32"):
        results.append(decode.main([*common, "--dtype", dtype]))
        print()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    print(f"written to {args.json}")


if __name__ == "__main__":
    main()

"""The auditor child: judges one record, writes the verdict into its store, and answers in one line.

Started after the producers have ended; reads plan and evidence files only, and imports no torch.
"""

import argparse
import json
from pathlib import Path

from harness.adapters.families import layout_for
from harness.errors import EvidenceError
from harness.evidence.record import load_record
from harness.evidence.store import Store
from harness.plan.load import load_plan
from harness.reconcile.judge import answer, exit_code, judge, store_verdict
from harness.reconcile.report import plain, verdict_lines
from harness.run.child import run_child


def main() -> int:
    """Entry of the child process."""
    parser = argparse.ArgumentParser(description="audit one record and keep the verdict")
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--record", required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    plan = load_plan(args.plan)
    record = load_record(args.record, Store(args.store))
    if record.store.root.resolve() != args.store.resolve():
        raise EvidenceError(
            "the record is in another store",
            expected=str(args.store),
            got=str(record.store.root),
        )
    verdict = judge(plan, record, layout_for=layout_for)
    digest = store_verdict(plan, record, verdict)
    if args.json:
        print(json.dumps(answer(plan, record, verdict, digest), sort_keys=True), flush=True)
    else:
        print(plain(verdict_lines(verdict)), end="", flush=True)
    return int(exit_code(verdict.status))


if __name__ == "__main__":
    run_child(main)

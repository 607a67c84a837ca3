"""``python -m harness.reconcile``: audit one record, or one published result, by hand.

Loads no adapter, so it audits without a layout; the supervisor's auditor and ``harness reconcile``
bring one. Writes a verdict only with ``--store-verdict``.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from harness.errors import HarnessError
from harness.evidence.record import load_record
from harness.evidence.store import Store
from harness.plan.load import LoadedPlan, load_plan
from harness.reconcile.judge import answer, exit_code, judge, read_published_result, store_verdict
from harness.reconcile.published import audit_published
from harness.reconcile.report import Line, print_lines, published_lines, verdict_lines


def main(argv: Sequence[str] | None = None) -> int:
    """Audit, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m harness.reconcile", description=__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="the frozen plan")
    parser.add_argument("--record", required=True, help="a record's path or digest, or a result")
    parser.add_argument("--store", type=Path, help="where a digest is looked up")
    parser.add_argument("--store-verdict", action="store_true", help="keep the verdict")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    args = parser.parse_args(argv)
    try:
        plan = load_plan(args.plan)
        result = _published(args.record)
        if result is not None:
            return _judge_published(plan, result, as_json=args.json)
        store = Store(args.store) if args.store is not None else None
        record = load_record(args.record, store)
        verdict = judge(plan, record)
        digest = store_verdict(plan, record, verdict) if args.store_verdict else None
    except HarnessError as error:
        print(str(error), file=sys.stderr)
        return int(error.exit_code)
    _say(answer(plan, record, verdict, digest), verdict_lines(verdict), as_json=args.json)
    return int(exit_code(verdict.status))


def _published(reference: str) -> dict[str, object] | None:
    path = Path(reference)
    return read_published_result(path) if path.is_file() else None


def _judge_published(plan: LoadedPlan, result: dict[str, object], *, as_json: bool) -> int:
    report = audit_published(plan, result)
    _say(asdict(report), published_lines(report), as_json=as_json)
    return int(exit_code(report.status))


def _say(document: dict[str, object], lines: Iterable[Line], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(document, sort_keys=True))
    else:
        print_lines(lines, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())

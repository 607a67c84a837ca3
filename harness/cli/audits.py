"""``harness reconcile``: what the auditor says of one record."""

import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from harness.adapters.families import layout_for
from harness.cli.output import print_json
from harness.cli.records import find_record
from harness.plan.load import LoadedPlan, load_plan
from harness.reconcile.judge import answer, exit_code, judge, read_published_result, store_verdict
from harness.reconcile.published import audit_published
from harness.reconcile.report import print_lines, published_lines, verdict_lines


def reconcile(options: Namespace) -> int:
    """Audit a record, or a published result, against its plan."""
    plan = load_plan(options.plan)
    path = Path(options.record)
    result = read_published_result(path) if path.is_file() else None
    if result is not None:
        return _reconcile_published(plan, result, options)
    record = find_record(options.record, options.store)
    verdict = judge(plan, record, layout_for=layout_for)
    digest = store_verdict(plan, record, verdict) if options.store_verdict else None
    if options.json:
        print_json(
            {
                **answer(plan, record, verdict, digest),
                "differences": [asdict(each) for each in verdict.differences],
                "unbound": list(verdict.unbound),
            }
        )
    else:
        print_lines(verdict_lines(verdict), sys.stdout)
    return int(exit_code(verdict.status))


def _reconcile_published(plan: LoadedPlan, result: dict[str, object], options: Namespace) -> int:
    report = audit_published(plan, result)
    if options.json:
        print_json(asdict(report))
    else:
        print_lines(published_lines(report), sys.stdout)
    return int(exit_code(report.status))

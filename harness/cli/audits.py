"""``harness reconcile`` and ``harness evidence verify``: what the auditor says."""

import sys
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path

from harness.adapters.families import layout_for
from harness.cli.output import print_json
from harness.cli.records import find_record
from harness.evidence.remote.address import is_address
from harness.evidence.signing.keys import allowed_keys
from harness.evidence.store import Store
from harness.plan.load import LoadedPlan, load_plan
from harness.reconcile.judge import answer, exit_code, judge, read_published_result, store_verdict
from harness.reconcile.published import audit_published
from harness.reconcile.report import Line, print_lines, published_lines, verdict_lines, verify_lines
from harness.reconcile.verify import verify as verify_evidence


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


def verify(options: Namespace) -> int:
    """Check every file of a store, audit every record again, and analyse every study again."""
    if is_address(options.store):
        from harness.cli.remote import verify_remote  # what copies stores, of no use here

        return verify_remote(options)
    root = Path(options.store)
    keys = None if options.keys is None else allowed_keys(options.keys)
    store = Store(root)
    num_studies = len(store.digests("studies"))
    report = verify_evidence(root, options.plans, layout_for=layout_for, keys=keys)
    if num_studies:
        # Loaded where there is something to analyse: half of a small store's time.
        from harness.laboratory.recheck import recheck_studies

        problems = [*report.problems, *recheck_studies(store)]
        report = replace(report, problems=tuple(sorted(problems)))
    if options.json:
        print_json(
            {
                "problems": [asdict(problem) for problem in report.problems],
                "records": [asdict(entry) for entry in report.records],
                "log": None if report.log is None else asdict(report.log),
                "num_keys": report.num_keys,
                "num_studies": num_studies,
                "exit_code": int(report.exit_code),
            }
        )
    else:
        print_lines(verify_lines(report), sys.stdout)
        if num_studies:
            print_lines(
                [Line(text=f"studies computed again from their tables: {num_studies}")], sys.stdout
            )
    return int(report.exit_code)

"""What ``harness evidence verify`` does once all it needs is loaded, and how it says it."""

import sys
from argparse import Namespace
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from harness.adapters.families import layout_for
from harness.cli.output import print_json
from harness.evidence.remote.address import is_address
from harness.evidence.signing.keys import allowed_keys
from harness.evidence.store import Store
from harness.reconcile.reaudit import Reaudit
from harness.reconcile.report import Line, print_lines, verify_lines
from harness.reconcile.verify import verify as verify_evidence
from harness.run.reaudits import Reauditor


def verify(options: Namespace, reauditor: Reauditor | None = None) -> int:
    """Check every file of a store, audit every record again, and analyse every study again.

    Args:
        options: The command's.
        reauditor: Audits records beside this process, if one does.
    """
    if is_address(options.store):
        from harness.cli.remote import verify_remote  # what copies stores, of no use here

        return verify_remote(options)
    root = Path(options.store)
    keys = None if options.keys is None else allowed_keys(options.keys)
    store = Store(root)
    num_studies = len(store.digests("studies"))
    report = verify_evidence(
        root,
        options.plans,
        layout_for=layout_for,
        keys=keys,
        elsewhere=None if reauditor is None else partial(_audited_by, reauditor),
    )
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


def _audited_by(reauditor: Reauditor, record: str, verdict: str | None) -> Reaudit:
    return Reaudit.of_message(reauditor.ask(record, verdict))

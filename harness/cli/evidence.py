"""``harness evidence``: list, show, verify, promote and compare records."""

from argparse import Namespace
from dataclasses import asdict

from harness.adapters.families import layout_for
from harness.canonical import bare_hex
from harness.cli.output import print_json, print_lines
from harness.cli.records import find_record, find_study, open_store, record_line
from harness.errors import ExitCode
from harness.evidence.diff import RecordDifference, compare_records
from harness.evidence.listing import list_records
from harness.evidence.promote import promote as promote_record
from harness.evidence.promote_study import lineage, promote_studies
from harness.evidence.record import LoadedRecord, verdicts_of
from harness.evidence.store import Store
from harness.laboratory.campaign import with_openings
from harness.laboratory.recheck import uphold_study
from harness.laboratory.record_states import history
from harness.reconcile.verify import uphold

_MAX_ROWS = 200


def ls(options: Namespace) -> int:
    """List the records of a store, newest first."""
    store = open_store(options.store)
    rows = list_records(store)
    if options.json:
        print_json({"store": str(options.store), "records": [asdict(row) for row in rows]})
        return int(ExitCode.PASSED)
    if not rows:
        print_lines([f"{options.store}: no records"])
    print_lines(record_line(row) for row in rows)
    return int(ExitCode.PASSED)


def show(options: Namespace) -> int:
    """Show one record, its verdicts and the differences they found."""
    record = find_record(options.record, options.store)
    verdicts = verdicts_of(record.store, record.digest)
    if options.json:
        print_json(
            {
                "record_digest": record.digest,
                "statement": record.statement,
                "verdicts": [
                    {
                        "verdict_digest": verdict.digest,
                        "statement": verdict.statement,
                        "differences": verdict.differences(),
                    }
                    for verdict in verdicts
                ],
            }
        )
        return int(ExitCode.PASSED)
    lines = _describe(record)
    for verdict in verdicts:
        found = verdict.predicate
        lines.append(
            f"verdict    {found.status} by auditor {found.auditor.version}"
            f" ({bare_hex(verdict.digest)[:16]})"
        )
        lines += [
            f"  {check.status:<13} {check.id}" + (f" ({check.num_differences} differences)")
            for check in found.checks
            if check.status != "passed"
        ]
        rows = verdict.differences()
        lines += [
            f"  {row['check']}: {row['path']}: expected {row['expected']}, got {row['got']}"
            for row in rows[:_MAX_ROWS]
        ]
        if len(rows) > _MAX_ROWS:
            lines.append(f"  ... and {len(rows) - _MAX_ROWS} more; --json lists all")
    if not verdicts:
        lines.append("verdict    not audited")
    print_lines(lines)
    return int(ExitCode.PASSED)


def _describe(record: LoadedRecord) -> list[str]:
    found = record.predicate
    key = found.applicability_key
    lines = [
        f"record     {record.digest}",
        f"experiment {found.experiment}",
        f"plan       {found.plan.digest} ({found.plan.model.repository})",
        f"time       {found.started_at} to {found.ended_at}",
        f"source     {found.source.git_commit or 'unknown commit'}"
        + (" with uncommitted changes" if found.source.dirty else ""),
        f"result     {found.result_digest or 'none'}",
    ]
    if key is not None:
        conditions = ", ".join(f"{name}={value}" for name, value in asdict(key).items())
        lines.append(f"conditions {conditions}")
    lines += [
        f"table      {table.name}"
        + ("" if table.realization is None else f"/r{table.realization}")
        + f": {table.num_rows} rows"
        for table in found.tables
    ]
    lines += [f"claim      {claim.name}: {claim.label}; {claim.detail}" for claim in found.claims]
    return lines


def promote(options: Namespace) -> int:
    """Copy a record or a study, with all it names, once it was judged anew and is upheld."""
    study = find_study(options.reference, options.store)
    return _promote_record(options) if study is None else _promote_study(*study, options)


def _promote_study(store: Store, digest: str, options: Namespace) -> int:
    promotion = promote_studies(
        store,
        with_openings(store, lineage(store, digest)),
        Store(options.to),
        approve=lambda study: uphold_study(store, study),
        approve_record=lambda record, verdicts: uphold(record, verdicts, layout_for=layout_for),
    )
    if options.json:
        print_json({"to": str(options.to), **asdict(promotion)})
    else:
        print_lines(
            [
                f"promoted {len(promotion.study_digests)} studies to {options.to} with "
                f"{len(promotion.records)} records, {len(promotion.table_digests)} tables and "
                f"{len(promotion.tensors_digests)} files of tensors"
            ]
        )
    return int(ExitCode.PASSED)


def _promote_record(options: Namespace) -> int:
    record = find_record(options.reference, options.store)
    states = history(record)
    if states:
        # A record that somebody doubts must not look like one that nobody doubts.
        return _promote_study(record.store, states[-1].digest, options)
    promotion = promote_record(
        record,
        Store(options.to),
        approve=lambda verdicts: uphold(record, verdicts, layout_for=layout_for),
    )
    if options.json:
        print_json({"to": str(options.to), **asdict(promotion)})
    else:
        print_lines(
            [
                f"promoted {promotion.record_digest} to {options.to} with "
                f"{len(promotion.verdict_digests)} verdicts and "
                f"{len(promotion.table_digests)} tables"
            ]
        )
    return int(ExitCode.PASSED)


def diff(options: Namespace) -> int:
    """List the differences of two records; exit 1 when their results differ."""
    one, other = (
        find_record(reference, options.store) for reference in (options.one, options.other)
    )
    comparison = compare_records(one, other)
    differ = bool(comparison.results)
    if options.json:
        print_json({**asdict(comparison), "results_agree": comparison.results_agree})
    else:
        lines = _differences("identity", comparison.identity)
        lines += _differences("results", comparison.results)
        lines += _differences("telemetry", comparison.telemetry)
        if not comparison.comparable:
            lines.append(
                "digests of numbers were not compared: the applicability keys differ or are unknown"
            )
        elif not differ:
            lines.append("results agree")
        print_lines(lines)
    if differ:
        return int(ExitCode.FAILED)
    return int(ExitCode.PASSED if comparison.comparable else ExitCode.NOT_EVALUABLE)


def _differences(title: str, rows: tuple[RecordDifference, ...]) -> list[str]:
    lines = [f"{title}: {len(rows)} differences"] if rows else []
    lines += [f"  {row.path}: {row.left} | {row.right}" for row in rows[:_MAX_ROWS]]
    if len(rows) > _MAX_ROWS:
        lines.append(f"  ... and {len(rows) - _MAX_ROWS} more; --json lists all")
    return lines

"""Checks of the record as such: its tables, and that the pinned checkpoint bytes were read."""

from collections import Counter

from harness.plan.records import Checkpoint
from harness.reconcile.findings import ABSENT, Findings, KeyedRows
from harness.reconcile.view import Subject, expected_tables, table_path


def tables(subject: Subject, findings: Findings) -> None:
    """Exactly the tables of a complete record, each readable and with unique keys."""
    num_stages = None if subject.plan.stages is None else len(subject.plan.stages)
    expected = expected_tables(subject.view.num_realizations, subject.checks, num_stages)
    tables_named = subject.predicate.tables
    named = Counter((table.name, table.realization, table.stage) for table in tables_named)
    for place in expected:
        if place in named:
            subject.view.table(findings, *place)
        else:
            findings.differ(table_path(*place), "a table", ABSENT)
    planned = set(expected)
    for place, count in named.items():
        if place not in planned:
            findings.differ(table_path(*place), ABSENT, "a table")
        elif count > 1:
            findings.differ(table_path(*place), "one table", f"{count} tables")


def source(subject: Subject, findings: Findings) -> None:
    """Each manifest tensor was fetched once, whole, with the pinned digest, and files closed."""
    checkpoint = subject.plan.checkpoint
    if subject.manifest is None and subject.support is None and subject.is_part:
        where = "$.stages"
        findings.not_evaluated(where, "each stage's tensors, by an adapter's layout", ABSENT)
        return
    if checkpoint is None or subject.manifest is None:
        findings.differ("$.manifest_digest", "the plan's tensor manifest", ABSENT)
        return
    expected = {
        (entry.key,): {
            "file": entry.file,
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "bytes": entry.source_bytes,
            "num_fetches": 1,
        }
        for entry in subject.manifest
    }
    pinned = {entry.key: entry.sha256 for entry in subject.manifest}
    for _realization, table in subject.view.each(findings, "fetches"):
        findings.match(table, expected, rows_noun="a fetch")
        for key, row in table.rows.items():
            if pinned.get(key[0]) is not None:
                findings.equal(f"{table.path(key)}.digest", pinned[key[0]], row["digest"])
    for key_text in sorted(key for key, digest in pinned.items() if digest is None):
        findings.not_evaluated(f"manifest[{key_text}].sha256", "a pinned digest", "null")
    read = {entry.file for entry in subject.manifest}
    for _realization, table in subject.view.each(findings, "sources"):
        _files(findings, table, checkpoint, read)


def _files(findings: Findings, table: KeyedRows, checkpoint: Checkpoint, read: set[str]) -> None:
    expected = {
        (file.name,): {"size_bytes": file.size_bytes}
        for file in checkpoint.files
        if file.name in read
    }
    findings.match(table, expected, rows_noun="a file of the checkpoint")
    for key, row in table.rows.items():
        findings.equal(f"{table.path(key)}.num_closes", row["num_opens"], row["num_closes"])
        findings.require(
            row["num_opens"] >= 1, f"{table.path(key)}.num_opens", "at least 1", row["num_opens"]
        )

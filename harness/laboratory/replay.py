"""``replay``: realizes a recorded plan again, and compares every recorded digest.

The plan comes out of the record's own store, the run is an ordinary one with its own record and
verdict. Imports no torch.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.canonical import write_durable
from harness.errors import EvidenceError
from harness.evidence.record import LoadedRecord, load_record
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate
from harness.laboratory.claims import fault_of
from harness.laboratory.faults.catalogue import planted
from harness.laboratory.replaying import (
    Tables,
    compared_columns,
    differing_fields,
    replay_findings,
    replay_rows,
)
from harness.laboratory.writing import draft, finish, put_rows
from harness.measure.clock import utc_timestamp
from harness.plan.load import parse_plan
from harness.plan.manifest import manifest_path
from harness.run.progress import Progress
from harness.run.request import RunRequest
from harness.run.supervisor import Completed, execute

KIND = "replay"
TABLE = "replayed"


def replay(
    record: LoadedRecord,
    base: RunRequest,
    progress: Progress,
    *,
    run: Callable[[RunRequest, Progress], Completed] = execute,
) -> tuple[str, StudyPredicate]:
    """Run a record's plan again; returns the study's digest in its store, and what it says.

    Args:
        record: What is to be reproduced; a planted fault is planted again.
        base: Cache, device and command; store, plan and experiment are the record's.
        progress: Where the state of the run is shown.
        run: Runs it; replaced in tests.

    Raises:
        HarnessError: When the record is damaged, or its plan cannot be run here.
    """
    started_at = utc_timestamp()
    store = record.store
    plan = parse_plan(record.plan_bytes(), where=record.predicate.plan.file_digest).plan
    _tables(record)  # what is to be compared is whole, before anything runs
    with tempfile.TemporaryDirectory() as folder:
        path = write_plan(record, Path(folder))
        request = replace(
            base,
            experiment=record.predicate.experiment,
            plan_path=path,
            plan_digest=record.predicate.plan.digest,
            store=store.root,
            **planted(fault_of(record), plan.adapter_data.family),
        )
        completed = run(request, progress)
    study = draft(
        kind=KIND,
        experiment=record.predicate.experiment,
        parameters={"audit": str(completed.verdict["status"])},
        records=(record.digest, completed.record),
        command=base.command,
        started_at=started_at,
    )
    rows, findings = recompute_replay(store, study)
    return finish(store, study, findings, [put_rows(store, TABLE, rows)])


def recompute_replay(
    store: Store, study: StudyPredicate
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows and findings that the two records of a replay give.

    Raises:
        EvidenceError: When there are not two different ones, of one plan.
    """
    if len(set(study.records)) != 2 or len(study.records) != 2:
        raise EvidenceError(
            "a replay is of two records", expected="one and another", got=str(study.records)
        )
    recorded, got = (load_record(digest, store) for digest in study.records)
    if recorded.predicate.plan.digest != got.predicate.plan.digest:
        raise EvidenceError(
            "a replay is of one plan",
            expected=recorded.predicate.plan.digest,
            got=got.predicate.plan.digest,
        )
    fields = differing_fields(recorded.predicate.applicability_key, got.predicate.applicability_key)
    rows = replay_rows(_tables(recorded), _tables(got), fields)
    sources = [each.predicate.source.package_digest for each in (recorded, got)]
    findings = replay_findings(
        rows,
        fields,
        is_whole=all(row["outcome"] == "completed" for row in got.rows("trials")),
        has_same_source=sources[0] is not None and sources[0] == sources[1],
    )
    return rows, findings


def write_plan(record: LoadedRecord, folder: Path) -> Path:
    """Write a record's plan and manifest as files; returns the plan's path."""
    path, data = folder / "plan.json", record.plan_bytes()
    checkpoint = parse_plan(data, where=record.predicate.plan.file_digest).plan.checkpoint
    manifest = record.manifest_bytes()
    if checkpoint is not None and manifest is not None:
        write_durable(manifest_path(folder, checkpoint.manifest), manifest)
    write_durable(path, data)
    return path


def _tables(record: LoadedRecord) -> Tables:
    found: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for table in record.predicate.tables:
        if compared_columns(table.name):
            own = {} if table.stage is None else {"stage": table.stage}
            rows = found.setdefault((table.name, table.realization), [])
            rows += [row | own for row in record.store.read_table_rows(table)]
    return found

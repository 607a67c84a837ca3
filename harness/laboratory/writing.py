"""How a study is written: with its source and its redacted command, after its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.evidence.redact import redact_command
from harness.evidence.store import Store
from harness.evidence.studies import StoredTensors, StudyPredicate, StudyTable, study_statement
from harness.evidence.tables import encode
from harness.measure.clock import utc_timestamp
from harness.run.assemble import source_of
from harness.run.supervisor import PACKAGE_ROOT

Rows = list[dict[str, Any]]


def put_rows(store: Store, name: str, rows: Rows, *, case: int | None = None) -> StudyTable:
    """Store one table of a study."""
    data, num_rows = encode(name, rows)
    return StudyTable(
        case=case,
        name=name,
        realization=None,
        digest=store.put_table(data),
        num_rows=num_rows,
        size_bytes=len(data),
    )


def draft(
    *,
    kind: str,
    experiment: str | None,
    parameters: Mapping[str, Any],
    records: Sequence[str],
    command: Sequence[str],
    started_at: str,
    tables: Sequence[StudyTable] = (),
    tensors: Sequence[StoredTensors] = (),
) -> StudyPredicate:
    """A study without findings."""
    return StudyPredicate(
        kind=kind,
        experiment=experiment,
        parameters=parameters,
        records=tuple(records),
        tables=tuple(tables),
        tensors=tuple(tensors),
        findings={},
        source=source_of(PACKAGE_ROOT),
        command=tuple(redact_command(command)),
        started_at=started_at,
        ended_at=started_at,
    )


def finish(
    store: Store,
    study: StudyPredicate,
    findings: Mapping[str, Any],
    tables: Sequence[StudyTable] = (),
) -> tuple[str, StudyPredicate]:
    """Store a study with its findings, and the tables they rest on; returns its digest and it."""
    finished = replace(
        study,
        findings=findings,
        tables=(*study.tables, *tables),
        ended_at=utc_timestamp(),
    )
    return store.put_study(study_statement(finished)), finished

"""An honest localization over a committed record, with made-up armed tables."""

from typing import Any

from armed_rows import armed_step_rows, boundary_rows, state_rows

from harness.evidence.predicates import SourceIdentity
from harness.evidence.record import LoadedRecord
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate, StudyTable, study_statement
from harness.evidence.tables import encode
from harness.laboratory.localization import case_finding, case_matrix, findings
from harness.laboratory.matrix import matrix_rows
from harness.laboratory.trials import CaseTables, trial_rows
from harness.realize.arming import Arming

Rows = list[dict[str, Any]]


def put(store: Store, name: str, rows: Rows, realization: int | None = None) -> StudyTable:
    data, num_rows = encode(name, rows)
    return StudyTable(
        case=0,
        name=name,
        realization=realization,
        digest=store.put_table(data),
        num_rows=num_rows,
        size_bytes=len(data),
    )


def localization(record: LoadedRecord) -> tuple[StudyPredicate, CaseTables]:
    """An honest study of one case: the second process differs from a boundary on."""
    store, steps = record.store, record.by_realization("steps")

    def late(repetition: int, phase: str, step: int, name: str) -> object:
        return repetition if (phase, name) == ("decode", "logits") else ""

    armed = {
        "boundaries": {0: boundary_rows(2), 1: boundary_rows(2, value=late)},
        "armed_steps": {n: armed_step_rows(steps[n]) for n in (0, 1)},
        "replay_states": {n: state_rows(2) for n in (0, 1)},
    }
    case = CaseTables(
        num_realizations=2,
        repetitions=2,
        ledger=record.rows("trials"),
        steps={n: rows for n, rows in steps.items() if n is not None},
        **armed,
    )
    tables = [
        put(store, name, rows, number)
        for name, by_process in armed.items()
        for number, rows in by_process.items()
    ]
    tables.append(put(store, "matrix", matrix_rows(case_matrix(case))))
    tables.append(put(store, "case_trials", trial_rows(case)))
    study = StudyPredicate(
        kind="localization",
        experiment="tiny_llama",
        parameters={
            "arming": Arming(repetitions=2).document(),
            "boundaries_version": "made-up/1",
            "planted_fault": None,
            "cases": [
                {
                    "point": {},
                    "plan_digest": record.predicate.plan.digest,
                    "num_realizations": 2,
                    "record": 0,
                    "audit": "passed",
                    "problem": None,
                }
            ],
        },
        records=(record.digest,),
        tables=tuple(tables),
        tensors=(),
        findings=findings([case_finding(case)]),
        source=SourceIdentity(),
        command=("harness", "localize"),
        started_at="2026-01-01T00:00:00Z",
        ended_at="2026-01-01T00:01:00Z",
    )
    return study, case


def localized(record: LoadedRecord) -> str:
    """Store that study; returns its digest."""
    return record.store.put_study(study_statement(localization(record)[0]))

"""Runs that end as a committed record, with made-up armed tables; no process is started.

What a supervisor leaves is left in full: a record with its tables in the store that was asked for,
and the armed tables beside it. The tests decide what varies and who is killed.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from armed_rows import armed_step_rows, digest, state_rows

from harness.evidence.declared import TABLES
from harness.evidence.predicates import PLANTED_FAULT, Claim
from harness.evidence.record import LoadedRecord, load_record
from harness.evidence.statement import WrittenTable, record_statement
from harness.evidence.store import Store
from harness.evidence.tables import encode
from harness.laboratory.cases import FrozenCase
from harness.laboratory.claims import planned_boundaries
from harness.plan.load import LoadedPlan, load_plan
from harness.run.assemble import Gathered
from harness.run.derivation import Settings
from harness.run.observed import Observed
from harness.run.progress import Progress
from harness.run.request import RunRequest
from harness.run.supervisor import Completed

Rows = list[dict[str, Any]]


def altered(
    record: LoadedRecord,
    table: str,
    change: Callable[[Rows], object],
    *,
    realization: int | None = 1,
    **predicate: Any,
) -> str:
    """Store a record that differs in one table, and in fields of its predicate."""
    rows = record.rows(table, realization)
    change(rows)
    written = put_table(record.store, table, rows, realization)
    kept = [t for t in record.predicate.tables if (t.name, t.realization) != (table, realization)]
    changed = replace(record.predicate, tables=(*kept, written), **predicate)
    return record.store.put_record(record_statement(changed))


def put_table(store: Store, name: str, rows: Rows, realization: int | None) -> WrittenTable:
    """Store one table."""
    # Rows of a record that an earlier release wrote lack the later columns.
    later = dict.fromkeys(TABLES[name].later if name in TABLES else ())
    data, num_rows = encode(name, [later | row for row in rows])
    return WrittenTable(
        name=name,
        realization=realization,
        digest=store.put_table(data),
        num_rows=num_rows,
        size_bytes=len(data),
    )


class FakeRuns:
    """Stands in for the supervisor, and for the freezing of plans."""

    def __init__(self, source: Path, plan: Path) -> None:
        """Take the store of one record, and the plan that it is of."""
        self._source, self._plan = source, load_plan(plan)
        self.varies: Callable[[RunRequest], bool] = lambda request: False
        self.killed: set[int] = set()
        """Realizations that are killed."""
        self.change: Callable[[LoadedRecord], str] | None = None
        """Makes another record of the one that every run ends as."""
        self.requests: list[RunRequest] = []

    def freeze(
        self, listed: Sequence[tuple[dict[str, int], Settings]], **_: Any
    ) -> tuple[FrozenCase, ...]:
        """What freezes the plans of cases: one plan for all."""
        return tuple(FrozenCase(point=point, plan=self._plan) for point, _ in listed)

    def check(self, request: RunRequest) -> LoadedPlan:
        """What checks the plan of a request, which is sound here."""
        del request
        return self._plan

    def execute(self, request: RunRequest, progress: Progress) -> Completed:
        """What the supervisor does with a request."""
        del progress
        self.requests.append(request)
        (committed,) = Store(self._source).digests("records")
        if not Store(request.store).has("records", committed):
            shutil.copytree(self._source, request.store, dirs_exist_ok=True)
        record = _of(request, load_record(committed, Store(request.store)))
        for number in sorted(self.killed):
            record = load_record(
                altered(record, "trials", _killed(number), realization=None), record.store
            )
        if self.change is not None:
            record = load_record(self.change(record), record.store)
        rows = {name: record.by_realization(name) for name in ("trials", "steps")}
        return cast(
            Completed,
            SimpleNamespace(
                record=record.digest,
                gathered=Gathered(rows=rows),
                observed=self._armed(request, record),
                verdict={"status": "passed"},
                exit_code=0,
            ),
        )

    def _armed(self, request: RunRequest, record: LoadedRecord) -> Observed:
        if request.arming is None:
            return Observed()
        gathered, boundaries = Gathered(), self._boundaries(request)
        repetitions = request.arming.repetitions
        for number, steps in record.by_realization("steps").items():
            if number in self.killed:
                continue
            tables = {
                "boundaries": boundaries,
                "armed_steps": armed_step_rows(steps, repetitions),
                "replay_states": state_rows(repetitions),
            }
            for name, rows in tables.items():
                gathered.written.append(put_table(record.store, name, rows, number))
                gathered.rows.setdefault(name, {})[number] = rows
        return Observed(gathered=gathered)

    def _boundaries(self, request: RunRequest) -> Rows:
        """Rows of every boundary that an armed process digests; repetitions differ, or do not."""
        arming, varies = request.arming, self.varies(request)
        assert arming is not None
        rows = []
        for repetition in range(arming.repetitions):
            seen = False
            for phase, step, index, name in planned_boundaries(self._plan.plan, arming):
                seen |= varies and name == "layers.0.kv_written"
                row = {"repetition": repetition, "phase": phase, "step": step, "boundary": index}
                text = f"{phase} {step} {name} {repetition if seen else 0}"
                row |= {"name": name, "dtype": "float32", "shape": [1], "bytes": 4}
                rows.append({**row, "digest": digest(text), "is_kept": False})
        return rows


def _of(request: RunRequest, record: LoadedRecord) -> LoadedRecord:
    """The record, had it been made by this request."""
    said = record.predicate
    fault = request.planted_fault
    if request.arming is None:
        # Whatever ran again started later.
        said = replace(said, started_at=said.ended_at)
    elif (fault, request.experiment) == (None, said.experiment):
        return record
    planted = () if fault is None else (Claim(name=PLANTED_FAULT, label="declared", detail=fault),)
    made = replace(said, experiment=request.experiment, claims=(*said.claims, *planted))
    return load_record(record.store.put_record(record_statement(made)), record.store)


def _killed(number: int) -> Callable[[Rows], object]:
    def change(rows: Rows) -> None:
        for row in rows:
            if (row["child"], row["realization"]) == ("producer", number):
                row |= {"outcome": "killed", "signal": "SIGKILL", "exit_code": None}
                row["message"] = "out of memory"

    return change

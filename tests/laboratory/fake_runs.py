"""Runs that end as a committed record, with made-up armed tables; no process is started.

What a supervisor leaves is left in full: a record with its tables in the store that was asked for,
and the armed tables beside it. The tests decide what varies and who is killed.
"""

import functools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from armed_rows import armed_step_rows, boundary_rows, state_rows

from harness.evidence.record import LoadedRecord, load_record
from harness.evidence.statement import WrittenTable, record_statement
from harness.evidence.store import Store
from harness.evidence.tables import encode
from harness.laboratory.cases import FrozenCase
from harness.plan.load import LoadedPlan, load_plan
from harness.run.assemble import Gathered
from harness.run.derivation import Settings
from harness.run.observed import Observed
from harness.run.progress import Progress
from harness.run.request import RunRequest
from harness.run.supervisor import Completed

Rows = list[dict[str, Any]]
REPETITIONS = 2


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
    data, num_rows = encode(name, rows)
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
        record = load_record(committed, Store(request.store))
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
                observed=Observed(gathered=self._armed(request, record)),
                verdict={"status": "passed"},
                exit_code=0,
            ),
        )

    def _armed(self, request: RunRequest, record: LoadedRecord) -> Gathered:
        varies, gathered = self.varies(request), Gathered()
        for number, steps in record.by_realization("steps").items():
            if number in self.killed:
                continue
            tables = {
                "boundaries": _boundaries(varies),
                "armed_steps": armed_step_rows(steps, REPETITIONS),
                "replay_states": state_rows(REPETITIONS),
            }
            for name, rows in tables.items():
                gathered.written.append(put_table(record.store, name, rows, number))
                gathered.rows.setdefault(name, {})[number] = rows
        return gathered


@functools.cache
def _boundaries(varies: bool) -> Rows:
    def value(repetition: int, phase: str, step: int, name: str) -> object:
        return repetition if varies and name == "layers.0.kv_written" else ""

    return boundary_rows(REPETITIONS, value=value)


def _killed(number: int) -> Callable[[Rows], object]:
    def change(rows: Rows) -> None:
        for row in rows:
            if (row["child"], row["realization"]) == ("producer", number):
                row |= {"outcome": "killed", "signal": "SIGKILL", "exit_code": None}
                row["message"] = "out of memory"

    return change

"""Typed access to evidence for notebooks: stores, records, tables as data frames, verdicts.

Reads only, and verifies every byte it reads against its digest.

>>> from harness.api import open_store
>>> store = open_store("evidence")
>>> store.records()[["experiment", "status"]]
  experiment  status
0       tiny  failed
>>> record = store.load(store.records()["digest"][0])
>>> record.frame("steps")[["realization", "phase", "step", "token"]].head(2)
   realization    phase  step  token
0            0  prefill     0     40
1            0   decode     1     41
>>> record.planned_and_observed()
  memory_resource_id  planned_bytes  observed_bytes
0          node0.ram             64              64
>>> record.verdicts()[["status", "auditor_version", "num_failed"]]
   status auditor_version  num_failed
0  failed           0.1.0           1

What happened over time, one row each, with columns of the types in :data:`FRAMES`:

>>> store.history("tiny")[["started_at", "status"]]
                 started_at  status
0 2026-01-02 03:04:05+00:00  failed
>>> record.step_times()[["realization", "phase", "step", "duration_ms"]].head(2)
   realization   phase  step  duration_ms
0            0  decode     0     0.000100
1            0  decode     1     0.000101
>>> list(record.ledger().columns[:4])
['realization', 'stage', 'point', 'memory_resource_id']

Digests, as numbers of distinct values: equal numbers in a line are equal bits.

>>> record.step_digests()  # doctest: +NORMALIZE_WHITESPACE
                     0.0  1.0
phase   step output
prefill 0    plane     0    0
             logits    0    0
decode  1    plane     0    0
             logits    0    0
        2    plane     0    0
             logits    0    0

Two records side by side, by what differs:

>>> compare(record, record).empty
True
>>> list(compare(record, record).columns)
['kind', 'place', 'left', 'right']
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import EvidenceError
from harness.evidence.declared import TABLES
from harness.evidence.diff import compare_records
from harness.evidence.listing import ListedRecord, list_records
from harness.evidence.record import LoadedRecord, load_record, verdicts_of
from harness.evidence.statement import RecordPredicate
from harness.evidence.store import Store
from harness.laboratory.matrix import Matrix
from harness.laboratory.studied import step_matrix, studied_cases

_LISTED = [field.name for field in fields(ListedRecord)]
_VERDICT = ["digest", "status", "auditor_version", "num_failed", "num_not_evaluated", "unbound"]

FRAMES: Mapping[str, Mapping[str, str]] = {
    "history": {
        "started_at": "datetime64[ns, UTC]",
        "experiment": "string",
        "status": "string",
        "record": "string",
        "plan": "string",
        "num_verdicts": "Int64",
    },
    "ledger": {
        "realization": "Int64",
        "stage": "Int64",
        "point": "string",
        "memory_resource_id": "string",
        "requested_bytes": "Int64",
        "allocated_bytes": "Int64",
        "resident_bytes": "Int64",
    },
    "step_times": {
        "realization": "Int64",
        "stage": "Int64",
        "repetition": "Int64",
        "phase": "string",
        "step": "Int64",
        "duration_ms": "float64",
        "sentinel_ms": "float64",
    },
    "differences": {"kind": "string", "place": "string", "left": "string", "right": "string"},
}
"""Columns and types of the frames that are made of more than one table, by name."""

_NO_STAGE = -1


@dataclass(frozen=True)
class Record:
    """One record; see :meth:`EvidenceStore.load`."""

    loaded: LoadedRecord

    @property
    def digest(self) -> str:
        """The record digest."""
        return self.loaded.digest

    @property
    def predicate(self) -> RecordPredicate:
        """Everything the record says, apart from the rows of its tables."""
        return self.loaded.predicate

    def frame(self, name: str) -> pd.DataFrame:
        """One table of all realizations, with a column ``realization``.

        It comes first and is ``<NA>`` for a table of the whole record, unless the table has a
        column of that name itself. The column ``stage`` comes last, ``<NA>`` where there are no
        stages. A table that the record does not have gives no rows.
        ``attrs["labels"]`` says of each column whether it was measured, calculated or declared.

        Raises:
            EvidenceError: When no table is called that, or a file is damaged.
        """
        if name not in TABLES:
            raise EvidenceError("unknown table", expected=", ".join(sorted(TABLES)), got=name)
        columns = list(dict.fromkeys(["realization", *TABLES[name].columns, "stage"]))
        rows = [
            {"realization": number, "stage": stage, **row}
            for (number, stage), listed in self.loaded.by_stage(name).items()
            for row in listed
        ]
        kinds = {"realization": "Int64", "stage": "Int64"}
        frame = pd.DataFrame(rows, columns=columns).astype(kinds)
        frame.attrs["labels"] = {column: TABLES[name].label(column) for column in columns}
        return frame

    def planned_and_observed(self) -> pd.DataFrame:
        """Bytes of persistent state per memory: columns ``memory_resource_id``,
        ``planned_bytes``, ``observed_bytes``; 0 where a memory is not named.
        """
        totals = self.predicate.totals
        planned, observed = totals["planned_bytes"], totals["observed_bytes"]
        rows = [
            (memory, planned.get(memory, 0), observed.get(memory, 0))
            for memory in sorted({*planned, *observed})
        ]
        columns = ["memory_resource_id", "planned_bytes", "observed_bytes"]
        return pd.DataFrame(rows, columns=columns)

    def verdicts(self) -> pd.DataFrame:
        """Every verdict on the record, oldest first, one row each."""
        rows = []
        for verdict in verdicts_of(self.loaded.store, self.digest):
            predicate = verdict.predicate
            statuses = [check.status for check in predicate.checks]
            rows.append(
                (
                    verdict.digest,
                    predicate.status,
                    predicate.auditor.version,
                    statuses.count("failed"),
                    statuses.count("not_evaluated"),
                    list(predicate.unbound),
                )
            )
        return pd.DataFrame(rows, columns=_VERDICT)

    def ledger(self) -> pd.DataFrame:
        """Bytes of each memory at each point of the lifecycle, in order (``FRAMES["ledger"]``).

        Resident bytes are the witness's, summed over the arenas of a memory; ``<NA>`` for a memory
        in which it saw none.
        """
        keys = ["realization", "stage", "memory_resource_id"]
        no_stage = {"stage": _NO_STAGE}
        ledger, arenas = (self.frame(name).fillna(no_stage) for name in ("ledger", "arenas"))
        seen = arenas.groupby([*keys, "point"], as_index=False)["resident_bytes"].sum()
        frame = ledger.merge(seen, on=[*keys, "point"], how="left")
        witnessed = frame.set_index(keys).index.isin(arenas.set_index(keys).index)
        # Where the witness saw a memory at all, no arena at a point is none of its pages.
        frame.loc[witnessed & frame["resident_bytes"].isna(), "resident_bytes"] = 0
        return _typed("ledger", frame.replace(no_stage, pd.NA))

    def step_times(self) -> pd.DataFrame:
        """Durations of every step in milliseconds (``FRAMES["step_times"]``). Telemetry."""
        frame = self.frame("step_times")
        for name in ("duration", "sentinel"):
            frame[f"{name}_ms"] = frame[f"{name}_ns"] / 1e6
        return _typed("step_times", frame)

    def step_digests(self) -> pd.DataFrame:
        """The digest matrix of the record's own steps: outputs of steps down, trials across.

        A trial ``r.k`` is repetition k of realization r. Values number the distinct digests of a
        line from 0, in order of appearance.

        Raises:
            EvidenceError: When a trial lacks a step that others have.
        """
        matrix = step_matrix(self.loaded.by_stage("steps"))
        frame = _matrix_frame(matrix)
        return frame.rename_axis(index=["phase", "step", "output"])

    def digest_matrices(self) -> dict[str, pd.DataFrame]:
        """The digest matrix of each case of each localization of the store about this record.

        By the study's digest and the case's name; boundaries down in execution order, trials
        across. A study that does not hold together is left out; verification names it.
        """
        cases = studied_cases(self.loaded.store, self.digest)
        return {
            f"{case.study[7:23]} {case.name}": _matrix_frame(case.matrix)
            for case in cases
            if case.matrix is not None
        }


@dataclass(frozen=True)
class EvidenceStore:
    """One store; see :func:`open_store`."""

    store: Store

    def records(self) -> pd.DataFrame:
        """Every record, newest first: digest, experiment, plan digest, status of its
        verdicts (``disputed`` when they contradict each other, ``None`` when it was not audited),
        start, and what is wrong with it, if anything.
        """
        rows = [asdict(listed) for listed in list_records(self.store)]
        return pd.DataFrame(rows, columns=_LISTED)

    def history(self, experiment: str | None = None) -> pd.DataFrame:
        """Records and their verdicts over time, oldest first (``FRAMES["history"]``).

        Args:
            experiment: Only records of this experiment; ``None`` takes all.
        """
        rows = [
            {
                "started_at": listed.started_at,
                "experiment": listed.experiment,
                "status": listed.status,
                "record": listed.digest,
                "plan": listed.plan_digest,
                "num_verdicts": listed.num_verdicts,
            }
            for listed in reversed(list_records(self.store))
            if experiment in (None, listed.experiment)
        ]
        frame = pd.DataFrame(rows, columns=list(FRAMES["history"]))
        frame["started_at"] = pd.to_datetime(
            frame["started_at"], utc=True, errors="coerce", format="ISO8601"
        )
        return _typed("history", frame)

    def load(self, digest: str | Path) -> Record:
        """Load a record by digest, by its first hexadecimal digits, or by path.

        Raises:
            EvidenceError: When there is no such record, or it is damaged.
        """
        return Record(load_record(digest, self.store))


def compare(left: Record, right: Record) -> pd.DataFrame:
    """Everything in which two records differ (``FRAMES["differences"]``).

    Kinds are ``identity``, ``results`` and ``telemetry``. ``attrs["comparable"]`` says whether
    digests of numbers were compared, which takes equal applicability keys.
    """
    found = compare_records(left.loaded, right.loaded)
    rows = [
        {"kind": kind, "place": each.path, "left": each.left, "right": each.right}
        for kind in ("identity", "results", "telemetry")
        for each in getattr(found, kind)
    ]
    frame = _typed("differences", pd.DataFrame(rows, columns=list(FRAMES["differences"])))
    frame.attrs["comparable"] = found.comparable
    return frame


def _matrix_frame(matrix: Matrix) -> pd.DataFrame:
    places: list[tuple[Any, ...]] = [(b.phase, b.step, b.name) for b in matrix.boundaries]
    index = pd.MultiIndex.from_tuples(places, names=["phase", "step", "boundary"])
    trials = [f"{trial.realization}.{trial.repetition}" for trial in matrix.trials]
    return pd.DataFrame(list(matrix.groups), index=index, columns=trials)


def _typed(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    """A frame with exactly its declared columns, in their types."""
    columns = FRAMES[name]
    return frame[list(columns)].astype(dict(columns))


def open_store(path: str | Path) -> EvidenceStore:
    """Open the store in a folder.

    Raises:
        EvidenceError: When there is no such folder.
    """
    root = Path(path)
    if not root.is_dir():
        raise EvidenceError(
            "no evidence store here",
            expected="a folder with records/, tables/ and plans/",
            where=str(path),
            hint="give the path of a store, such as evidence or runs",
        )
    return EvidenceStore(Store(root))

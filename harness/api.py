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
"""

from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pandas as pd

from harness.errors import EvidenceError
from harness.evidence.declared import TABLES
from harness.evidence.listing import ListedRecord, list_records
from harness.evidence.record import LoadedRecord, load_record, verdicts_of
from harness.evidence.statement import RecordPredicate
from harness.evidence.store import Store

_LISTED = [field.name for field in fields(ListedRecord)]
_VERDICT = ["digest", "status", "auditor_version", "num_failed", "num_not_evaluated", "unbound"]


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
        column of that name itself. A table that the record does not have gives no rows.
        ``attrs["labels"]`` says of each column whether it was measured, calculated or declared.

        Raises:
            EvidenceError: When no table is called that, or a file is damaged.
        """
        if name not in TABLES:
            raise EvidenceError("unknown table", expected=", ".join(sorted(TABLES)), got=name)
        columns = list(dict.fromkeys(["realization", *TABLES[name].columns]))
        rows = [
            {"realization": number, **row}
            for number, listed in self.loaded.by_realization(name).items()
            for row in listed
        ]
        frame = pd.DataFrame(rows, columns=columns).astype({"realization": "Int64"})
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

    def load(self, digest: str | Path) -> Record:
        """Load a record by digest, by its first hexadecimal digits, or by path.

        Raises:
            EvidenceError: When there is no such record, or it is damaged.
        """
        return Record(load_record(digest, self.store))


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

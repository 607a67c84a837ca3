"""A wrong token in the reference fixture, in the copy of this run: the cached one stays right."""

from typing import Any

from harness.evidence import tables
from harness.laboratory.faults.wrapping import after
from harness.run import fixture
from harness.run.job import Job

TABLE = "fixture_outputs"


def plant() -> None:
    """Wrap the fixture maker in this process."""

    def change(_: None, job: Job) -> None:
        path = job.fixture / f"{TABLE}.parquet"
        rows: list[dict[str, Any]] = tables.decode(TABLE, path.read_bytes(), where=TABLE)
        last = max(n for n, row in enumerate(rows) if row["token"] is not None)
        rows[last]["token"] += 1
        data, _num_rows = tables.encode(TABLE, rows)
        path.write_bytes(data)

    after(fixture, "make", change)

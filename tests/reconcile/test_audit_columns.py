"""Every column of every table: another value is found by the right check, or listed as unbound."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from synthetic_record import (
    MANIFEST,
    Layout,
    Row,
    Tables,
    by_name,
    make_plan,
    make_predicate,
    make_record,
    make_tables,
)

from harness.evidence.declared import TABLES
from harness.plan.checks import DEVICE_CHECKS, NODE_CHECKS, STAGE_CHECKS
from harness.reconcile.audit import audit
from harness.reconcile.result import result_digest
from harness.reconcile.unbound import CELLS, EVICTED_COLUMNS
from harness.reconcile.unbound import COLUMNS as ALWAYS_UNBOUND
from harness.reconcile.verdict import Verdict

PLAN = make_plan()
TABLES_THAT_PASS = make_tables()
PREDICATE = make_predicate(PLAN, TABLES_THAT_PASS)
COLUMNS = {**ALWAYS_UNBOUND, **EVICTED_COLUMNS}

# Which check must find another value of a column.
FINDERS: dict[str, dict[str, str]] = {
    "materializations": {
        "id": "realization.materializations",
        "status": "summaries.agree",
        "lifecycle": "realization.materializations",
        "logical_state_id": "realization.materializations",
        "representation": "realization.materializations",
        "memory_resource_id": "realization.materializations",
        "requested_bytes": "realization.materializations",
        "allocated_bytes": "memory.ledger|realization.materializations",
        "bytes_before_release": "realization.materializations",
        "bytes_after_release": "realization.materializations",
        "released_bytes": "realization.materializations",
        "qualifying_ids": "realization.release|realization.materializations",
    },
    "authorities": dict.fromkeys(TABLES["authorities"].columns, "realization.authorities"),
    "executions": dict.fromkeys(
        ("id", "strategy_unit", "compute_unit_id", "status"), "realization.executions"
    ),
    "fetches": dict.fromkeys(TABLES["fetches"].columns, "integrity.source"),
    "sources": dict.fromkeys(TABLES["sources"].columns, "integrity.source"),
    "tensors": dict.fromkeys(TABLES["tensors"].columns, "tensors.expected|tensors.unchanged"),
    "expected_tensors": dict.fromkeys(TABLES["expected_tensors"].columns, "tensors.expected"),
    "fixture_outputs": dict.fromkeys(TABLES["fixture_outputs"].columns, "correctness.exact")
    | {"token": "steps.complete"},
    "steps": dict.fromkeys(TABLES["steps"].columns, "steps.complete")
    | {"plane_digest": "correctness.exact", "logits_digest": "correctness.exact|steps.complete"}
    | dict.fromkeys(("num_nan", "num_inf"), "numbers.finite")
    | {"margin": "steps.repeat"},
    "correctness": dict.fromkeys(TABLES["correctness"].columns, "correctness.exact")
    | dict.fromkeys(("num_nan", "num_inf"), "numbers.finite"),
    "states": dict.fromkeys(TABLES["states"].columns, "state.selfproof"),
    "fixture_states": dict.fromkeys(TABLES["fixture_states"].columns, "state.selfproof"),
    "ownership": dict.fromkeys(TABLES["ownership"].columns, "state.ownership"),
    "sentinels": dict.fromkeys(("name", "point"), "sentinels.zero") | {"count": "sentinels.zero"},
    "ledger": dict.fromkeys(
        TABLES["ledger"].columns.keys() - {"peak_allocated_bytes", "unplanned_tensor_bytes"},
        "memory.ledger",
    ),
    "checkpoints": {
        "point": "memory.invariants",
        "vm_rss_bytes": "memory.invariants",
        "rss_anon_bytes": "memory.invariants",
        "rss_file_bytes": "memory.invariants",
        "rss_shmem_bytes": "memory.invariants",
        "new_file_bytes": "memory.unplanned",
        "unplanned_bytes": "memory.unplanned",
        "process_id": "trials.completed",
        "start_ticks": "trials.completed",
    },
    "arenas": dict.fromkeys(TABLES["arenas"].columns.keys() - {"resident_bytes"}, "memory.ledger"),
    "step_times": dict.fromkeys(("repetition", "phase", "step"), "step.times"),
    "facts": {"name": "plan.binding", "value": "plan.binding"},
    "lifecycle": dict.fromkeys(("order", "event", "process_id", "start_ticks"), "trials.completed"),
    "trials": dict.fromkeys(
        ("child", "realization", "outcome", "exit_code", "signal"), "trials.completed"
    ),
}
# Columns of one writer that only have to agree with one another: changing one alone is found, and
# changing all those of an entry together, in every realization, is not.
JOINT: list[tuple[str, tuple[str, ...], Callable[[Row], Row]]] = [
    (
        "checkpoints",
        ("vm_rss_bytes", "rss_anon_bytes", "rss_file_bytes", "rss_shmem_bytes"),
        lambda row: {
            "vm_rss_bytes": row["vm_rss_bytes"] + 6,
            "rss_anon_bytes": row["rss_anon_bytes"] + 1,
            "rss_file_bytes": row["rss_file_bytes"] + 2,
            "rss_shmem_bytes": row["rss_shmem_bytes"] + 3,
        },
    ),
    (
        "checkpoints",
        ("new_file_bytes", "unplanned_bytes"),
        # Below the least growth of all, so that the smallest visible mirror does not change.
        lambda row: {
            "new_file_bytes": row["new_file_bytes"] + (row["point"] == "after_decode"),
            "unplanned_bytes": row["unplanned_bytes"] + (row["point"] == "after_decode"),
        },
    ),
    (
        "sources",
        ("num_opens", "num_closes"),
        lambda row: {"num_opens": row["num_opens"] + 1, "num_closes": row["num_closes"] + 1},
    ),
    (
        "steps",
        ("margin",),
        lambda row: {"margin": None if row["margin"] is None else row["margin"] + 1.0},
    ),
    (
        "ownership",
        ("num_live", "num_available", "num_mapped", "num_evicted"),
        # One page more is evicted once more than a page is held.
        lambda row: {
            "num_live": row["num_live"] - (row["num_mapped"] > 2),
            "num_available": row["num_available"] + (row["num_mapped"] > 2),
            "num_mapped": row["num_mapped"] - 2 * (row["num_mapped"] > 2),
            "num_evicted": row["num_evicted"] + 2 * (row["num_mapped"] > 2),
        },
    ),
]
JOINT_COLUMNS = {(name, column) for name, columns, _ in JOINT for column in columns}
# Values that lie outside the bounds of a bounded column, by column: (index of the row, value).
OUTSIDE: dict[tuple[str, str], tuple[int, Any, str]] = {
    ("sources", "num_opens"): (0, 0, "integrity.source"),
    ("sources", "num_closes"): (0, 0, "integrity.source"),
    ("steps", "margin"): (8, -0.5, "numbers.finite"),
    ("ownership", "num_live"): (0, 2, "state.ownership"),
    ("ownership", "num_available"): (0, 6, "state.ownership"),
    ("ownership", "num_mapped"): (0, 1, "state.ownership"),
    ("ownership", "num_evicted"): (0, -1, "state.ownership"),
    ("sentinels", "canary_count"): (0, 0, "sentinels.canaries"),
    ("ledger", "peak_allocated_bytes"): (11, 1, "memory.ledger"),
    ("ledger", "unplanned_tensor_bytes"): (10, 1, "memory.unplanned"),
    ("checkpoints", "read_at"): (5, "2025-01-01T00:00:00.000000Z", "memory.invariants"),
    ("checkpoints", "vm_rss_bytes"): (5, 9, "memory.invariants"),
    ("checkpoints", "rss_anon_bytes"): (5, 9, "memory.invariants"),
    ("checkpoints", "rss_file_bytes"): (5, 9, "memory.invariants"),
    ("checkpoints", "rss_shmem_bytes"): (5, 9, "memory.invariants"),
    ("checkpoints", "new_file_bytes"): (5, 9, "memory.unplanned"),
    ("checkpoints", "unplanned_bytes"): (5, 9_000, "memory.unplanned"),
    ("checkpoints", "vm_hwm_bytes"): (5, 10_000, "memory.invariants"),
    ("checkpoints", "minor_faults"): (5, 53, "memory.invariants"),
    ("checkpoints", "major_faults"): (5, 8, "memory.invariants"),
    ("checkpoints", "swap_in_pages"): (5, 4, "memory.invariants"),
    ("checkpoints", "swap_out_pages"): (5, 4, "memory.invariants"),
    ("checkpoints", "vm_swap_bytes"): (5, -1, "memory.invariants"),
    ("checkpoints", "uss_bytes"): (5, -1, "memory.invariants"),
    ("checkpoints", "num_threads"): (5, -1, "memory.invariants"),
    ("checkpoints", "num_descriptors"): (5, -1, "memory.invariants"),
    ("checkpoints", "checkpoint_descriptors"): (4, ["one.safetensors"], "memory.release"),
    ("checkpoints", "checkpoint_mappings"): (5, ["one.safetensors"], "memory.release"),
    ("checkpoints", "private_anonymous_bytes"): (5, 9_000, "memory.unplanned"),
    ("checkpoints", "shared_anonymous_bytes"): (5, 9_000, "memory.unplanned"),
    ("checkpoints", "memfd_bytes"): (5, 9_000, "memory.unplanned"),
    ("arenas", "resident_bytes"): (5, 4097, "memory.ledger"),
    ("step_times", "duration_ns"): (0, 0, "step.times"),
    ("step_times", "sentinel_ns"): (0, -1, "step.times"),
    ("lifecycle", "at_ns"): (3, 19_000, "trials.completed"),
    ("checkpoints", "read_ns"): (3, 20_299, "trials.completed"),
    ("trials", "duration_ns"): (3, 1449, "trials.completed"),
    ("trials", "process_id"): (3, 22, "trials.completed"),
    ("trials", "start_ticks"): (3, 1, "trials.completed"),
    ("distributions", "name"): (1, "torch", "integrity.tables"),
}
ALWAYS_THERE = {
    "distributions": [
        {"name": "torch", "version": "0.0.0"},
        {"name": "numpy", "version": "0.0.0"},
    ],
}
for _name, _rows in ALWAYS_THERE.items():
    TABLES_THAT_PASS[_name, 1] = _rows


def audited(rows: Tables) -> Verdict:
    record = make_record(PLAN, rows, result_digest=PREDICATE.result_digest)
    return audit(PLAN, MANIFEST, record, layout=Layout())  # type: ignore[arg-type]


def with_value(name: str, realization: int | None, index: int, column: str, value: Any) -> Tables:
    rows = dict(TABLES_THAT_PASS)
    rows[name, realization] = copy.deepcopy(rows[name, realization])
    rows[name, realization][index][column] = value
    return rows


def others(kind: str, value: Any) -> list[Any]:
    """Other values of a column's type."""
    kind = kind.removesuffix("?")
    if value is None:
        return [{"str": "planted", "int": 1, "float": 0.25}[kind]]
    if kind == "str":
        later = value.replace(".000000Z", ".000001Z")
        return [later if later != value else value + "x"]
    if kind == "int":
        return [value + 1, value - 1]
    if kind == "float":
        return [value + 0.25, float("nan")]
    return [[*value, value[0] if value else {"strs": "planted", "ints": 1}[kind]], value[1:]]


def row_path(name: str, realization: int | None, row: Row) -> str:
    where = f"tables/{name}" if realization is None else f"tables/{name}/r{realization}"
    return f"{where}[{','.join(f'{column}={row[column]}' for column in TABLES[name].key)}]"


def cells() -> Iterator[tuple[str, int | None, int, str, Any, Any]]:
    """Every other value of every cell of one realization and of the record-wide tables."""
    for (name, realization), listed in TABLES_THAT_PASS.items():
        if realization == 0:
            continue
        for index, row in enumerate(listed):
            for column, kind in TABLES[name].columns.items():
                for value in others(kind, row[column]):
                    if value != row[column]:
                        yield name, realization, index, column, row[column], value


def finds(verdict: Verdict, name: str, realization: int | None, row: Row, column: str) -> bool:
    """Whether a check of the column names the row."""
    path = row_path(name, realization, row)
    checks = FINDERS.get(name, {}).get(column, "").split("|")
    named = [d for d in verdict.differences if d.check in checks]
    if name == "tensors":
        # A changed row is named where it is compared, which for decode is at the later point.
        path = path.partition(",point=")[0]
    if name == "checkpoints" and column in ("private_anonymous_bytes",):
        path = path.partition("[")[0]
    return any(d.path.startswith(path) or path in d.expected for d in named)


def test_the_synthetic_record_passes() -> None:
    verdict = audited(TABLES_THAT_PASS)
    assert verdict.differences == ()
    assert verdict.status == "passed"
    assert verdict.result_digest == PREDICATE.result_digest


def test_every_column_has_a_check_or_is_listed_as_unbound() -> None:
    written = {
        (name, column)
        for name, table in TABLES.items()
        # Tables of a device's own memory, and of stages, have tests of their own:
        # test_device_check.py, tests/stages/test_audit.py and test_machines.py.
        if table.writer != "auditor"
        and table.check not in {**DEVICE_CHECKS, **STAGE_CHECKS, **NODE_CHECKS}
        for column in table.columns
    }
    checked = {(name, column) for name, columns in FINDERS.items() for column in columns}
    listed = {(name, column) for name, columns in COLUMNS.items() for column in columns}
    assert checked | listed == written
    assert checked & listed == JOINT_COLUMNS
    bounded = {(n, c) for n, columns in COLUMNS.items() for c, bound in columns.items() if bound}
    assert set(OUTSIDE) == bounded


def last_cells() -> list[Any]:
    """One cell of each column: the last row that differs from the first where there is one."""
    chosen: dict[tuple[str, str], Any] = {}
    for name, realization, index, column, _old, value in cells():
        chosen[name, column] = (name, realization, index, column, value)
    return [pytest.param(*cell, id=f"{cell[0]}.{cell[3]}") for cell in chosen.values()]


@pytest.mark.parametrize(("name", "realization", "index", "column", "value"), last_cells())
def test_another_value_of_a_column_is_found(
    name: str, realization: int | None, index: int, column: str, value: Any
) -> None:
    row = TABLES_THAT_PASS[name, realization][index]
    verdict = audited(with_value(name, realization, index, column, value))
    if column in COLUMNS.get(name, {}) and (name, column) not in JOINT_COLUMNS:
        return
    assert finds(verdict, name, realization, row, column), verdict.differences
    assert verdict.status == "failed" or name == "step_times"


@pytest.mark.slow
def test_another_value_of_any_cell_is_found() -> None:
    missed = set()
    passing = set()
    for name, realization, index, column, old, value in cells():
        row = TABLES_THAT_PASS[name, realization][index]
        verdict = audited(with_value(name, realization, index, column, value))
        if not verdict.differences:
            passing.add((name, column))
        elif column in COLUMNS.get(name, {}) and (name, column) not in JOINT_COLUMNS:
            continue
        elif not finds(verdict, name, realization, row, column):
            missed.add((name, column, repr(old), repr(value)))
    assert missed == set()
    # The list is exact: nothing else gets through, and each of these does, alone or together.
    listed = {(name, column) for name, columns in COLUMNS.items() for column in columns}
    assert passing == listed - JOINT_COLUMNS


@pytest.mark.parametrize(
    ("name", "columns", "change"), JOINT, ids=[f"{name}-{columns[0]}" for name, columns, _ in JOINT]
)
def test_columns_that_only_have_to_agree_can_change_together(
    name: str, columns: tuple[str, ...], change: Callable[[Row], Row]
) -> None:
    rows = dict(TABLES_THAT_PASS)
    for realization in (0, 1):
        before = rows[name, realization]
        rows[name, realization] = [row | change(row) for row in before]
        for column in columns:
            assert [row[column] for row in rows[name, realization]] != [r[column] for r in before]
    digest = result_digest(PLAN, PREDICATE.applicability_key, by_name(rows))
    record = make_record(PLAN, rows, result_digest=digest)
    assert audit(PLAN, MANIFEST, record, layout=Layout()).differences == ()  # type: ignore[arg-type]


def test_mutable_state_before_the_prompt_is_the_one_that_no_other_writer_gives() -> None:
    def changed(point: str) -> Tables:
        rows = dict(TABLES_THAT_PASS)
        for realization in (0, 1):
            rows["states", realization] = [
                row
                | {
                    "name": f"{row['name']}2",
                    "bytes": row["bytes"] + {"k": 8, "v": -8}.get(row["name"], 0),
                    "digest": row["digest"][:-8] + row["digest"][-8:][::-1],
                }
                if point in (row["point"], "everywhere")
                else row
                for row in rows["states", realization]
            ]
        return rows

    def found(point: str) -> set[str]:
        rows = changed(point)
        digest = result_digest(PLAN, PREDICATE.applicability_key, by_name(rows))
        record = make_record(PLAN, rows, result_digest=digest)
        verdict = audit(PLAN, MANIFEST, record, layout=Layout())  # type: ignore[arg-type]
        return {difference.check for difference in verdict.differences}

    assert found("before_prefill") == set()
    assert {cell for cell in CELLS if "/states[" in cell} == {
        f"tables/states[point=before_prefill].{column}" for column in ("name", "bytes", "digest")
    }
    for point in ("after_prefill", "after_restore", "after_decode", "everywhere"):
        assert found(point) == {"state.selfproof"}


@pytest.mark.parametrize(("name", "column"), list(OUTSIDE), ids=".".join)
def test_a_bounded_column_is_refused_outside_its_bounds(name: str, column: str) -> None:
    index, value, check = OUTSIDE[name, column]
    realization = 1 if (name, 1) in TABLES_THAT_PASS else None
    verdict = audited(with_value(name, realization, index, column, value))
    assert check in {difference.check for difference in verdict.differences}
    where = f"tables/{name}" if realization is None else f"tables/{name}/r1"
    assert any(d.path.startswith(where) or where in d.expected for d in verdict.differences)


@pytest.mark.parametrize("table", list(TABLES_THAT_PASS), ids=lambda t: f"{t[0]}-{t[1]}")
def test_a_missing_row_and_a_repeated_row_are_found(table: tuple[str, int | None]) -> None:
    name, realization = table
    listed = TABLES_THAT_PASS[table]
    where = f"tables/{name}" if realization is None else f"tables/{name}/r{realization}"
    repeated = audited(TABLES_THAT_PASS | {table: [*listed, listed[-1]]})
    path = row_path(name, realization, listed[-1])
    assert ("integrity.tables", path) in {(d.check, d.path) for d in repeated.differences}
    assert repeated.status == "failed"
    missing = audited(TABLES_THAT_PASS | {table: listed[:-1]})
    if name not in ("lifecycle", "distributions"):
        key = path.removeprefix(where)
        assert any(f"tables/{name}" in d.path and key in d.path for d in missing.differences)


@pytest.mark.parametrize("table", list(TABLES_THAT_PASS), ids=lambda t: f"{t[0]}-{t[1]}")
def test_a_missing_table_is_a_difference_that_names_it(table: tuple[str, int | None]) -> None:
    name, realization = table
    where = f"tables/{name}" if realization is None else f"tables/{name}/r{realization}"
    verdict = audited({key: rows for key, rows in TABLES_THAT_PASS.items() if key != table})
    assert verdict.status == "failed"
    named = {d.check for d in verdict.differences if d.path == where}
    assert "integrity.tables" in named
    expected = {c for finder in FINDERS.get(name, {}).values() for c in finder.split("|")}
    # Beside one of them, a column may have a second finder that reads another table first.
    assert expected & named or not expected

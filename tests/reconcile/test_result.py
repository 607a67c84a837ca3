import copy
import random
from dataclasses import asdict, replace
from typing import Any

import pytest
from synthetic_record import KEY, Tables, by_name, make_plan, make_tables, sha

from harness.errors import EvidenceError
from harness.evidence.declared import TABLES
from harness.reconcile.result import result_digest, result_document

PLAN = make_plan()
# What every faithful run repeats, by table; everything else may differ from run to run.
COVERED = {
    "steps": {
        "repetition",
        "phase",
        "step",
        "start_position",
        "num_rows",
        "token",
        "plane_digest",
        "logits_digest",
    },
    "states": {"repetition", "point", "name", "bytes", "digest"},
    "tensors": {"materialization_id", "name", "point", "dtype", "shape", "bytes", "digest"},
    "materializations": {"id", "requested_bytes", "bytes_before_release", "bytes_after_release"},
}
# Of the columns that the recomputed status depends on, those whose change changes it here.
BY_STATUS = {"lifecycle", "logical_state_id", "representation", "memory_resource_id"}


def digest(rows: Tables) -> str:
    return result_digest(PLAN, KEY, by_name(rows))


def changed(value: Any) -> Any:
    if value is None:
        return 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return value + "x" if isinstance(value, str) else [*value, *value, 1]


@pytest.mark.parametrize("name", sorted({name for name, _ in make_tables()}))
def test_it_covers_results_and_no_telemetry(name: str) -> None:
    reference = digest(make_tables())
    for realization in (0, 1, None):
        for column in TABLES[name].columns:
            rows = make_tables()
            if (name, realization) not in rows:
                continue
            # The first materialization is the staging, the second a residency.
            row = rows[name, realization][1 if name == "materializations" else -1]
            row[column] = changed(row[column])
            is_covered = column in COVERED.get(name, set()) or (
                name == "materializations" and column in BY_STATUS
            )
            assert (digest(rows) != reference) == is_covered, column


def test_the_producers_status_is_not_covered_but_the_recomputed_one_is() -> None:
    document = result_document(PLAN, KEY, by_name(make_tables()))
    statuses = {row["id"]: row["status"] for row in document["realizations"][0]["materializations"]}
    assert statuses["mat.w.stage"] == "TRANSIENT_RELEASED_AS_PLANNED"
    assert statuses["mat.cache.host"] == "OPTIONAL_NOT_REALIZED"
    rows = make_tables()
    rows["materializations", 0][1]["status"] = "anything"
    assert digest(rows) == digest(make_tables())


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_rows_does_not_matter(seed: int) -> None:
    rows = make_tables()
    shuffled = dict(sorted(rows.items(), key=lambda item: sha(f"{seed}{item[0]}")))
    for listed in shuffled.values():
        random.Random(seed).shuffle(listed)
    assert digest(shuffled) == digest(make_tables())


def test_it_covers_plan_and_key() -> None:
    rows = by_name(make_tables())
    reference = result_digest(PLAN, KEY, rows)
    assert result_digest(make_plan(plan_version="other"), KEY, rows) != reference
    assert result_digest(PLAN, replace(KEY, torch_build="0.0.1"), rows) != reference
    assert result_digest(PLAN, None, rows) != reference
    assert result_digest(PLAN, asdict(KEY), rows) == reference


@pytest.mark.parametrize("name", ["steps", "states", "tensors", "materializations"])
def test_a_missing_table_is_an_error_that_names_it(name: str) -> None:
    rows = make_tables()
    del rows[name, 1]
    with pytest.raises(EvidenceError, match=f"tables/{name}/r1"):
        digest(rows)


def test_the_inputs_are_left_alone() -> None:
    rows = make_tables()
    before = copy.deepcopy(rows)
    digest(rows)
    assert rows == before


def test_realizations_are_told_apart() -> None:
    one, other = make_tables(), make_tables()
    one["steps", 0][0]["plane_digest"] = sha("other")
    other["steps", 1][0]["plane_digest"] = sha("other")
    assert digest(one) != digest(other)

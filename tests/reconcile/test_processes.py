"""A realization is a process of its own in its turn, and all its tables are of that process."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from synthetic_record import MANIFEST, Layout, Tables, make_plan, make_record, make_tables

from harness.evidence.declared import TABLES
from harness.reconcile.audit import audit

PLAN = make_plan()
PRODUCERS = ("checkpoints", "lifecycle")


def found(rows: Tables) -> dict[str, set[str]]:
    """Places of differences by check, without those of a digest that these rows do not have."""
    record = make_record(PLAN, rows, result_digest=None)
    verdict = audit(PLAN, MANIFEST, record, layout=Layout())  # type: ignore[arg-type]
    places: dict[str, set[str]] = {}
    for each in verdict.differences:
        places.setdefault(each.check, set()).add(each.path)
    places.pop("result.digest", None)
    return places


def changed(change: Callable[[Tables], object]) -> dict[str, set[str]]:
    rows = copy.deepcopy(make_tables())
    change(rows)
    return found(rows)


def earlier(rows: Tables) -> Tables:
    """The same as an earlier release would have written them."""
    return {
        place: [{k: v for k, v in row.items() if k not in TABLES[place[0]].later} for row in listed]
        for place, listed in rows.items()
    }


def copied(rows: Tables) -> None:
    """The second realization is the first again."""
    for name, realization in list(rows):
        if realization == 0:
            rows[name, 1] = copy.deepcopy(rows[name, 0])


def renamed(rows: Tables) -> None:
    copied(rows)
    for table in (*rows["checkpoints", 1], *rows["lifecycle", 1]):
        table.update(process_id=21, start_ticks=760)


def shifted(rows: Tables) -> None:
    """Names and times of the producer's copy are made to fit; its witness's times are forgotten."""
    renamed(rows)
    for event in rows["lifecycle", 1]:
        event["at_ns"] += 10_000


def swapped(*names: str) -> Callable[[Tables], None]:
    def change(rows: Tables) -> None:
        for name in names:
            rows[name, 0], rows[name, 1] = rows[name, 1], rows[name, 0]

    return change


def slow_step(rows: Tables) -> None:
    rows["step_times", 1][0]["duration_ns"] += 6


def test_the_passing_record_passes_in_both_forms() -> None:
    assert found(make_tables()) == {}
    rows = earlier(make_tables())
    assert not any("process_id" in row for row in rows["trials", None])
    assert found(rows) == {}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (copied, {"order=0].at_ns", ".process_id", ".start_ticks"}),
        (renamed, {"order=0].at_ns"}),
        (shifted, {".read_ns"}),
        (swapped("checkpoints"), {".process_id", ".start_ticks", ".read_ns"}),
        (swapped("checkpoints", "arenas", "lifecycle"), {".process_id", ".start_ticks", ".at_ns"}),
    ],
    ids=["copied", "renamed", "shifted", "witness-swapped", "both-swapped"],
)
def test_tables_of_another_realization_are_found(
    change: Callable[[Tables], object], named: set[str]
) -> None:
    places = changed(change)["trials.completed"]
    assert all(any(place.endswith(suffix) for place in places) for suffix in named)
    assert all(any(place.endswith(suffix) for suffix in named) for place in places)
    assert all("/r1[" in place or "/r0[" in place for place in places)


def test_a_copy_is_found_by_its_times_where_no_process_is_named() -> None:
    rows = copy.deepcopy(make_tables())
    copied(rows)
    places = found(earlier(rows))
    assert places == {"trials.completed": {"tables/lifecycle/r1[order=0].at_ns"}}


@pytest.mark.parametrize("name", ["trials", *PRODUCERS])
def test_one_writer_cannot_leave_out_what_the_others_say(name: str) -> None:
    rows = copy.deepcopy(make_tables())
    without = earlier(rows)
    for place in rows:
        if place[0] == name:
            rows[place] = without[place]
    assert "trials.completed" in found(rows)


@pytest.mark.parametrize("name", PRODUCERS)
@pytest.mark.parametrize("realization", [0, 1])
def test_a_table_without_rows_hides_nothing(name: str, realization: int) -> None:
    places = changed(lambda rows: rows.update({(name, realization): []}))
    assert places
    # Each thing that is missing is told, and no check gave up.
    assert not any("$" in paths for paths in places.values())


def test_no_process_is_two_children() -> None:
    def one(rows: Tables) -> None:
        for trial in rows["trials", None][3:]:
            trial.update({k: rows["trials", None][1][k] for k in ("process_id", "start_ticks")})

    places = changed(one)["trials.completed"]
    assert "tables/trials[child=witness,realization=1].process_id" in places


def test_steps_take_no_longer_than_all_of_them_did() -> None:
    assert changed(slow_step) == {"step.times": {"tables/step_times/r1"}}


def test_a_child_ran_at_least_as_long_as_its_events() -> None:
    def short(rows: Tables) -> Any:
        rows["trials", None][1]["duration_ns"] = 1449

    places = changed(short)
    where = "tables/trials[child=producer,realization=0].duration_ns"
    assert places == {"trials.completed": {where}}

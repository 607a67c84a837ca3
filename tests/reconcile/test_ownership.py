"""What the check of pooled state finds: every lie, and every way in which a pool loses a slot."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from synthetic_record import (
    KEY,
    MANIFEST,
    OWNED,
    POOL_PAGES,
    Layout,
    Row,
    Tables,
    by_name,
    make_plan,
    make_record,
    make_tables,
    ownership_row,
)

from harness.evidence.declared import TABLES
from harness.plan.layout import CensusEntry, LayoutRequest, TensorSpec
from harness.plan.load import LoadedPlan
from harness.plan.records import CheckLimit, Checks
from harness.reconcile.audit import audit
from harness.reconcile.result import result_digest
from harness.reconcile.unbound import COLUMNS, EVICTED_COLUMNS, unbound_paths
from harness.reconcile.verdict import Verdict
from harness.reconcile.view import expected_tables

CHECK = "state.ownership"
EVICTING = make_plan()
KEEPING = make_plan(eviction_policy=None)
PLAIN = make_plan(pools=False)


def kept(rows: Tables) -> Tables:
    """The same tables where nothing is evicted."""
    changed = dict(rows)
    for realization in (0, 1):
        changed["ownership", realization] = [
            ownership_row(
                {column: row[column] for column in ("repetition", "phase", "step")},
                row["pool"],
                row["num_positions"],
                OWNED[row["num_positions"]][0],
                0,
            )
            for row in rows["ownership", realization]
        ]
    return changed


TABLES_OF = {"evicting": make_tables(), "keeping": kept(make_tables())}
PLANS = {"evicting": EVICTING, "keeping": KEEPING}


def alone(plan: LoadedPlan) -> LoadedPlan:
    """The plan with this one check, past the rules that would refuse it."""
    checks = Checks(acceptance=(CheckLimit(id=CHECK),), telemetry=())
    return replace(plan, plan=replace(plan.plan, checks=checks))


def audited(plan: LoadedPlan, rows: Tables, layout: Any = None) -> Verdict:
    digest = result_digest(plan, KEY, by_name(rows))
    record = make_record(plan, rows, result_digest=digest)
    return audit(plan, MANIFEST, record, layout=layout or Layout())


def paths(kind: str, rows: Tables, layout: Any = None) -> list[str]:
    """Where the check alone differs."""
    plan = alone(PLANS[kind])
    record = make_record(plan, rows, result_digest=None)
    verdict = audit(plan, MANIFEST, record, layout=layout or Layout())
    return [difference.path for difference in verdict.differences]


def changed(
    kind: str, change: Callable[[Row], Row], realizations: Sequence[int] = (0, 1)
) -> Tables:
    """The passing tables with every ``ownership`` row of these realizations changed."""
    rows = dict(TABLES_OF[kind])
    for realization in realizations:
        rows["ownership", realization] = [
            row | change(row) for row in copy.deepcopy(rows["ownership", realization])
        ]
    return rows


def at(phase: str, step: int, pool: str, **values: int) -> Callable[[Row], Row]:
    """Change one step of one pool, in every repetition."""
    return lambda row: (
        values if (row["phase"], row["step"], row["pool"]) == (phase, step, pool) else {}
    )


def place(phase: str, step: int, pool: str, *, realization: int = 0, repetition: int = 0) -> str:
    key = f"repetition={repetition},phase={phase},step={step},pool={pool}"
    return f"tables/ownership/r{realization}[{key}]"


@pytest.mark.parametrize(
    ("plan", "rows", "layout"),
    [
        (EVICTING, TABLES_OF["evicting"], Layout()),
        (KEEPING, TABLES_OF["keeping"], Layout()),
        (PLAIN, make_tables(pools=False), Layout(pools=False)),
    ],
    ids=["evicting", "keeping", "without pools"],
)
def test_sound_records_of_every_kind_pass(plan: LoadedPlan, rows: Tables, layout: Any) -> None:
    verdict = audited(plan, rows, layout)
    assert (verdict.status, verdict.differences) == ("passed", ())


# The first and last row of each pool, and one in between.
@pytest.mark.parametrize("index", [0, 1, 7, 16, 17])
def test_without_a_policy_every_other_value_is_found_even_if_all_realizations_tell_it(
    index: int,
) -> None:
    for column, kind in TABLES["ownership"].columns.items():
        told = TABLES_OF["keeping"]["ownership", 0][index][column]
        for other in ("x",) if kind == "str" else (told + 1, told - 1):
            rows = dict(TABLES_OF["keeping"])
            for realization in (0, 1):
                rows["ownership", realization] = copy.deepcopy(rows["ownership", realization])
                rows["ownership", realization][index][column] = other
            assert paths("keeping", rows), (column, other)


@pytest.mark.parametrize("more", [1, -1])
@pytest.mark.parametrize("kind", ["evicting", "keeping"])
def test_pages_are_counted_exactly(kind: str, more: int) -> None:
    def tell(row: Row) -> Row:
        return {
            "num_live": row["num_live"] + more,
            "num_available": row["num_available"] - more,
        }

    found = paths(kind, changed(kind, tell))
    assert len(found) == 2 * 18
    assert all(path.endswith("].num_live") for path in found)


def test_the_sentinel_page_is_never_available() -> None:
    rows = changed("evicting", lambda row: {"num_available": row["num_available"] + 1})
    found = paths("evicting", rows)
    assert len(found) == 2 * 18
    assert all(path.endswith("].num_available") for path in found)


# Ways in which a pool fails; each told alike by both realizations, so that nothing else differs.
FAULTS: dict[str, tuple[str, Callable[[Row], Row], set[str]]] = {
    "never allocated": (
        "keeping",
        lambda row: {
            "num_live": 0,
            "num_available": row["num_pages"] - 1,
            "num_mapped": 0,
            "num_aliased": row["num_positions"],
        },
        {"num_live", "num_mapped", "num_aliased"},
    ),
    "never allocated, and nothing said of it": (
        "keeping",
        lambda row: {"num_live": 0, "num_available": row["num_pages"] - 1, "num_mapped": 0},
        {"num_live", "num_mapped"},
    ),
    "one step late": (
        "keeping",
        lambda row: {"num_mapped": row["num_mapped"] - 1, "num_aliased": 1},
        {"num_mapped", "num_aliased"},
    ),
    "aliased": (
        "keeping",
        lambda row: {"num_mapped": row["num_mapped"] - 2, "num_aliased": 2},
        {"num_mapped", "num_aliased"},
    ),
    "aliased, and nothing said of it": (
        "keeping",
        lambda row: {"num_mapped": row["num_mapped"] - 2},
        {"num_mapped"},
    ),
    "leaked": (
        "keeping",
        lambda row: {
            "num_live": row["num_live"] + 1,
            "num_available": row["num_available"] - 1,
            "num_leaked": 1,
        },
        {"num_live", "num_leaked"},
    ),
    "lost from the free list": (
        "keeping",
        lambda row: {"num_available": row["num_available"] - 1},
        {"num_available"},
    ),
    "stale": ("keeping", lambda row: {"num_stale": 1}, {"num_stale"}),
    "evicted without a policy": (
        "keeping",
        lambda row: {
            "num_evicted": 2,
            "num_mapped": row["num_mapped"] - 2,
            "num_live": row["num_live"] - 1,
            "num_available": row["num_available"] + 1,
        },
        {"num_evicted"},
    ),
    "of another page size": ("keeping", lambda row: {"page_size": 1}, {"page_size"}),
    "smaller than planned": (
        "keeping",
        lambda row: {
            "num_pages": row["num_pages"] - 1,
            "num_available": row["num_available"] - 1,
        },
        {"num_pages"},
    ),
    "behind the frontier": (
        "evicting",
        lambda row: {"num_positions": row["num_positions"] - 1},
        {"num_positions"},
    ),
    "leaked where it evicts": ("evicting", lambda row: {"num_leaked": 1}, {"num_leaked"}),
    "stale where it evicts": ("evicting", lambda row: {"num_stale": 1}, {"num_stale"}),
    "aliased where it evicts": ("evicting", lambda row: {"num_aliased": 2}, {"num_aliased"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_pool_is_named_in_every_row_that_shows_it(name: str) -> None:
    kind, change, columns = FAULTS[name]
    found = paths(kind, changed(kind, change))
    assert {path.rpartition(".")[2] for path in found} == columns
    assert len(found) == 2 * 18 * len(columns)


def test_an_unallocated_pool_fails_the_verdict_by_this_check_alone() -> None:
    rows = changed("keeping", FAULTS["never allocated"][1])
    verdict = audited(KEEPING, rows)
    assert verdict.status == "failed"
    assert {check.id for check in verdict.checks if check.status == "failed"} == {CHECK}


@pytest.mark.parametrize("pool", POOL_PAGES)
def test_a_pool_that_is_not_reported_is_missed_after_every_step(pool: str) -> None:
    rows = dict(TABLES_OF["evicting"])
    for realization in (0, 1):
        listed = rows["ownership", realization]
        rows["ownership", realization] = [row for row in listed if row["pool"] != pool]
    found = paths("evicting", rows)
    assert len(found) == 2 * 9
    assert all(path.endswith(f"pool={pool}]") for path in found)


def test_a_pool_that_no_plan_has_is_named() -> None:
    rows = dict(TABLES_OF["evicting"])
    extra = rows["ownership", 1][0] | {"pool": "spare"}
    rows["ownership", 1] = [*rows["ownership", 1], extra]
    assert paths("evicting", rows) == [place("prefill", 0, "spare", realization=1)]


@pytest.mark.parametrize("kind", ["evicting", "keeping"])
def test_a_step_that_was_not_counted_is_missed_and_one_that_was_not_planned_is_named(
    kind: str,
) -> None:
    rows = dict(TABLES_OF[kind])
    *others, last = rows["ownership", 0]
    rows["ownership", 0] = [*others, last | {"step": 3}]
    assert paths(kind, rows) == [
        place("decode", 2, "near", repetition=1),
        place("decode", 3, "near", repetition=1),
    ]


@pytest.mark.parametrize("realization", [0, 1])
def test_a_table_that_is_absent_fails_both_checks_that_need_it(realization: int) -> None:
    rows = {key: v for key, v in make_tables().items() if key != ("ownership", realization)}
    verdict = audited(EVICTING, rows)
    where = f"tables/ownership/r{realization}"
    assert {(d.check, d.path) for d in verdict.differences} == {
        ("integrity.tables", where),
        (CHECK, where),
    }
    assert verdict.status == "failed"


def test_only_a_plan_with_the_check_has_the_table() -> None:
    rows = make_tables(pools=False)
    for realization in (0, 1):
        rows["ownership", realization] = TABLES_OF["keeping"]["ownership", realization]
    verdict = audited(PLAIN, rows, Layout(pools=False))
    assert verdict.status == "failed"
    assert [(d.check, d.path, d.expected) for d in verdict.differences] == [
        ("integrity.tables", f"tables/ownership/r{realization}", "absent") for realization in (0, 1)
    ]
    with_check = set(expected_tables(2, {CHECK}))
    without = set(expected_tables(2, {"integrity.tables"}))
    assert with_check - without == {("ownership", 0, None), ("ownership", 1, None)}
    assert without < with_check


def test_a_family_that_asks_for_the_check_has_no_plan_without_it() -> None:
    rows = make_tables(pools=False)
    verdict = audited(PLAIN, rows, Layout(pools=True))
    assert verdict.status == "failed"
    (named,) = [d for d in verdict.differences if d.path == "plan/$.checks.acceptance"]
    assert named.check == "plan.binding"
    assert CHECK in named.got


# What is evicted: no plan says how much


def test_realizations_evict_alike() -> None:
    more = at("decode", 2, "near", num_evicted=4, num_mapped=4, num_live=2, num_available=4)
    found = paths("evicting", changed("evicting", more, realizations=[1]))
    columns = ("num_available", "num_evicted", "num_live", "num_mapped")
    assert found == [
        f"{place('decode', 2, 'near', realization=1, repetition=repetition)}.{column}"
        for repetition in (0, 1)
        for column in columns
    ]
    # All realizations alike: another policy could as well have let go of so much.
    assert paths("evicting", changed("evicting", more)) == []


def test_repetitions_evict_alike() -> None:
    more = at("decode", 2, "near", num_evicted=4, num_mapped=4, num_live=2, num_available=4)
    rows = changed("evicting", lambda row: more(row) if row["repetition"] == 1 else {})
    found = paths("evicting", rows)
    assert len(found) == 2 * 4
    assert all("[repetition=1,phase=decode,step=2,pool=near]" in path for path in found)


def test_what_is_evicted_does_not_come_back() -> None:
    back = at("decode", 1, "near", num_evicted=0, num_mapped=7, num_live=4, num_available=2)
    assert paths("evicting", changed("evicting", back)) == [
        f"{place('decode', 1, 'near', realization=realization)}.num_evicted"
        for realization in (0, 1)
    ]


@pytest.mark.parametrize(
    ("evicted", "live", "is_possible"), [(8, 0, True), (9, 0, False), (-1, 5, False), (7, 1, True)]
)
def test_no_more_is_evicted_than_was_held(evicted: int, live: int, is_possible: bool) -> None:
    change = at(
        "decode",
        2,
        "near",
        num_evicted=evicted,
        num_mapped=8 - evicted,
        num_live=live,
        num_available=6 - live,
    )
    found = paths("evicting", changed("evicting", change))
    assert (found == []) == is_possible
    if not is_possible:
        assert f"{place('decode', 2, 'near')}.num_evicted" in found


def test_nothing_less_than_nothing_is_evicted_from_the_first_step_on() -> None:
    change = at("prefill", 0, "near", num_evicted=-1, num_mapped=3, num_live=2, num_available=4)
    assert paths("evicting", changed("evicting", change)) == [
        f"{place('prefill', 0, 'near', realization=realization)}.num_evicted"
        for realization in (0, 1)
    ]


def test_what_is_unbound_is_said_where_something_evicts() -> None:
    named = {
        f"tables/{table}.{column}" for table, names in EVICTED_COLUMNS.items() for column in names
    }
    assert "ownership" not in COLUMNS
    assert set(unbound_paths(evicts=True)) - set(unbound_paths()) == named
    assert set(unbound_paths()) < set(unbound_paths(evicts=True))
    assert set(audited(EVICTING, make_tables()).unbound) >= named
    assert not set(audited(KEEPING, TABLES_OF["keeping"]).unbound) & named
    bare = make_plan(pools=False, eviction_policy="evict-near/1")
    verdict = audited(bare, make_tables(pools=False), Layout(pools=False))
    assert not set(verdict.unbound) & named


# Which pools there are


class Pools(Layout):
    """Pools of other tensors than the record's."""

    def __init__(self, of_state: dict[str, tuple[int, ...]], of_snapshot: tuple[str, ...] = ()):
        super().__init__()
        self._of_state, self._of_snapshot = of_state, of_snapshot

    def tensors(
        self,
        request: LayoutRequest,
        logical_state_id: str,
        representation: str,
        census: Sequence[CensusEntry],
    ) -> tuple[TensorSpec, ...]:
        specs = super().tensors(request, logical_state_id, representation, census)
        if representation == "cells-float32":
            return tuple(
                TensorSpec(name=name, dtype="uint8", shape=shape)
                for name, shape in self._of_state.items()
            )
        if representation == "state-snapshot":
            more = (TensorSpec(name=n, dtype="uint8", shape=(3,)) for n in self._of_snapshot)
            return (*specs, *more)
        return specs


def test_without_a_layout_nothing_can_be_said_and_nothing_passes() -> None:
    record = make_record(EVICTING, make_tables())
    verdict = audit(EVICTING, MANIFEST, record, layout=None)
    assert verdict.status == "not_evaluated"
    assert [(d.check, d.path, d.status) for d in verdict.differences] == [
        (CHECK, "$.materializations", "not_evaluated")
    ]


def test_a_state_without_a_pool_fails_the_check() -> None:
    found = paths("keeping", TABLES_OF["keeping"], Pools({"k": (16,)}))
    assert "$.materializations" in found
    rows = {key: listed for key, listed in make_tables().items() if key[0] != "ownership"}
    for realization in (0, 1):
        rows["ownership", realization] = []
    assert paths("keeping", rows, Pools({"k": (16,)})) == ["$.materializations"]


def test_pools_are_those_of_the_owner_and_not_of_a_copy() -> None:
    sizes = {f"{pool}.live": (pages,) for pool, pages in POOL_PAGES.items()}
    found = paths("keeping", TABLES_OF["keeping"], Pools(sizes, of_snapshot=("ghost.live",)))
    assert found == []
    more = sizes | {"ghost.live": (3,)}
    found = paths("keeping", TABLES_OF["keeping"], Pools(more))
    assert len(found) == 2 * 9
    assert all(path.endswith("pool=ghost]") for path in found)


def test_pages_are_those_of_the_planned_tensor() -> None:
    sizes = {f"{pool}.live": (pages + 1,) for pool, pages in POOL_PAGES.items()}
    found = paths("keeping", TABLES_OF["keeping"], Pools(sizes))
    assert len(found) == 2 * 18
    assert all(path.endswith("].num_pages") for path in found)


def test_a_page_is_one_position_where_no_plan_says_more() -> None:
    assert KEEPING.plan.workload is not None
    single = make_plan(
        workload=replace(KEEPING.plan.workload, page_size=None), eviction_policy=None
    )

    def slots(row: Row) -> Row:
        held, pages = row["num_positions"], row["num_pages"]
        return {"page_size": 1, "num_live": held, "num_available": pages - 1 - held}

    sizes = {f"{pool}.live": (9,) for pool in POOL_PAGES}
    rows = changed("keeping", lambda row: slots(row | {"num_pages": 9}) | {"num_pages": 9})
    verdict = audited(alone(single), rows, Pools(sizes))
    assert verdict.differences == ()
    assert audited(alone(KEEPING), rows, Pools(sizes)).differences != ()

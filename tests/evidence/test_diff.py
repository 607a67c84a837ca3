from dataclasses import replace
from types import ModuleType

import pytest

from harness.evidence.diff import RecordComparison, compare_records
from harness.evidence.record import LoadedRecord, load_record
from harness.evidence.statement import record_statement
from harness.evidence.store import Store


@pytest.fixture
def base(store: Store, sample: ModuleType) -> LoadedRecord:
    return load_record(sample.put_record(store), store)


def paths(differences: tuple[object, ...]) -> list[str]:
    return [difference.path for difference in differences]  # type: ignore[attr-defined]


def other(
    sample: ModuleType, store: Store, tables: list[object], **changes: object
) -> LoadedRecord:
    statement = record_statement(sample.predicate(store, tables, **changes))
    return load_record(store.put_record(statement), store)


def test_a_record_does_not_differ_from_itself(base: LoadedRecord) -> None:
    comparison = compare_records(base, base)
    assert comparison == RecordComparison(comparable=True, identity=(), results=(), telemetry=())
    assert comparison.results_agree


def test_each_row_that_differs_is_named_by_its_key(
    base: LoadedRecord, store: Store, sample: ModuleType
) -> None:
    rows = sample.step_rows()
    rows[1]["token"] = 99
    rows[2]["logits_digest"] = None
    tables = [
        sample.put_rows(store, "trials", sample.trial_rows()),
        sample.put_rows(store, "steps", rows, 0),
        sample.put_rows(store, "steps", sample.step_rows(num_steps=4), 1),
        *(sample.put_rows(store, "step_times", sample.time_rows(500), number) for number in (0, 1)),
    ]
    changed = other(sample, store, tables, result_digest=sample.digest("another"))
    comparison = compare_records(base, changed)
    assert comparison.identity == ()
    assert paths(comparison.results) == [
        "result_digest",
        "steps/r0[0, decode, 1].token",
        "steps/r0[0, decode, 2].logits_digest",
        "steps/r1[0, decode, 3]",
    ]
    token, logits, extra = comparison.results[1:]
    assert (token.left, token.right) == ("41", "99")
    assert (logits.left, logits.right) == (sample.digest("logits 2"), "-")
    assert (extra.left, extra.right) == ("-", "row")
    assert paths(comparison.telemetry) == ["step_times/r0", "step_times/r1"]
    assert comparison.telemetry[0].left == "2 of 2 rows differ"
    assert not comparison.results_agree
    backwards = compare_records(changed, base)
    assert paths(backwards.results) == paths(comparison.results)
    assert (backwards.results[1].left, backwards.results[1].right) == ("99", "41")


def test_digests_of_numbers_are_not_compared_under_other_keys(
    base: LoadedRecord, store: Store, sample: ModuleType
) -> None:
    key = replace(base.predicate.applicability_key, instruction_set="AVX512")  # type: ignore[type-var]
    rows = sample.step_rows("other machine")
    rows[0]["token"] = 7
    tables = [sample.put_rows(store, "steps", rows, number) for number in (0, 1)]
    tables += [t for t in base.predicate.tables if t.name != "steps"]
    changed = other(sample, store, tables, applicability_key=key, result_digest=None)
    comparison = compare_records(base, changed)
    assert not comparison.comparable
    assert not comparison.results_agree
    assert paths(comparison.identity) == ["applicability_key.instruction_set"]
    assert paths(comparison.results) == [
        "steps/r0[0, prefill, 0].token",
        "steps/r1[0, prefill, 0].token",
    ]
    same_but_unknown = other(sample, store, list(base.predicate.tables), applicability_key=None)
    assert not compare_records(same_but_unknown, same_but_unknown).comparable


def test_identity_environment_and_missing_tables(
    base: LoadedRecord, store: Store, sample: ModuleType
) -> None:
    environment = {**base.predicate.environment, "facts": {"cores": 64}}
    changed = other(
        sample,
        store,
        [table for table in base.predicate.tables if table.name == "steps" and table.realization],
        experiment="renamed",
        environment=environment,
        fixture=None,
    )
    comparison = compare_records(base, changed)
    assert paths(comparison.identity) == ["experiment", "fixture.recipe_digest"]
    assert paths(comparison.results) == ["fixture.digest", "steps/r0"]
    assert (comparison.results[1].left, comparison.results[1].right) == ("3 rows", "-")
    assert {"environment.facts.cores", "step_times/r0", "trials"} <= set(
        paths(comparison.telemetry)
    )


def sentinel_rows(canary_count: int) -> list[dict[str, object]]:
    return [
        {"name": "unplanned_pages", "point": "after_decode", "count": 0}
        | {"canary_count": canary_count}
    ]


def faithful(sample: ModuleType, store: Store, run: int) -> LoadedRecord:
    """One of several runs of a plan: equal results, and figures that no two runs share."""
    tables = [
        sample.put_rows(store, "trials", [{**sample.trial_rows()[0], "duration_ns": run}]),
        sample.put_rows(store, "steps", sample.step_rows(), 0),
        sample.put_rows(store, "step_times", sample.time_rows(1000 * run), 0),
        sample.put_rows(store, "sentinels", sentinel_rows((1 << 20) + run), 0),
    ]
    totals = {
        "planned_bytes": {"node0.ram": 64},
        "observed_bytes": {"node0.ram": 64},
        "num_steps": 3,
        "smallest_visible_mirror_bytes": 4096 * run,
    }
    times = {"started_at": f"2026-01-02T03:04:0{run}Z", "ended_at": f"2026-01-02T03:05:0{run}Z"}
    return other(sample, store, tables, totals=totals, **times)


@pytest.mark.usefixtures("base")
def test_two_faithful_runs_agree(store: Store, sample: ModuleType) -> None:
    comparison = compare_records(faithful(sample, store, 1), faithful(sample, store, 2))
    assert comparison.results == ()
    assert comparison.results_agree
    assert paths(comparison.telemetry) == [
        "sentinels/r0",
        "step_times/r0",
        "totals.smallest_visible_mirror_bytes",
        "trials",
    ]
    mirror = comparison.telemetry[2]
    assert (mirror.left, mirror.right) == ("4096", "8192")


@pytest.mark.parametrize(
    ("name", "value"),
    [("planned_bytes", {}), ("observed_bytes", {"node0.ram": 63}), ("num_steps", 4)],
)
def test_totals_that_every_faithful_run_repeats_are_results(
    base: LoadedRecord, store: Store, sample: ModuleType, name: str, value: object
) -> None:
    totals = {**base.predicate.totals, name: value}
    changed = other(sample, store, list(base.predicate.tables), totals=totals)
    comparison = compare_records(base, changed)
    assert paths(comparison.results) == [f"totals.{name}"]
    assert comparison.telemetry == ()

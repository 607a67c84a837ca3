"""How a prompt is cut: the plan's own intervals, what is refused, and where older plans stay."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_sample import (
    Document,
    FakeSupport,
    corrupted,
    entries,
    environment,
    file_of,
    loaded,
    native_document,
)

from harness.errors import PlanError
from harness.plan.check import check_plan
from harness.plan.documents import plan_to_document
from harness.plan.format import plan_digest, plan_file_bytes
from harness.plan.load import load_plan, parse_plan
from harness.plan.partition import partition_faults, prefill_partition
from harness.plan.recipe import recipe_digest
from harness.plan.records import ModelRange, Workload
from harness.plan.show import show_plan
from harness.realize.schedule import schedule_of
from harness.reconcile.checks.conditions import planned_geometry
from harness.reconcile.checks.steps import planned_steps

Intervals = list[list[Any]]
SPEC = ModelRange(
    start_layer=0,
    end_layer=1,
    owns_embeddings=True,
    owns_final_norm_head=True,
    model_repository="none/sample",
    revision="0",
)


def workload(prompt: int, rows: int, partition: Intervals | None = None) -> Workload:
    return Workload(
        prompt_token_ids=tuple(range(prompt)),
        chunk_rows=rows,
        decode_steps=2,
        repetitions=1,
        fresh_realizations=1,
        sampling="greedy",
        max_positions=prompt + 2,
        prefill_partition=None if partition is None else tuple(tuple(i) for i in partition),  # type: ignore[misc]
    )


def with_partition(partition: Any, rows: int = 2) -> Document:
    """The sample plan, of 3 prompt tokens, with a partition."""
    change = {"chunk_rows": rows, "prefill_partition": partition}
    return corrupted(lambda d: d["workload"].update(change))


def places(document: Document) -> list[str]:
    findings = check_plan(
        loaded(document), environment=environment(), support=FakeSupport(), manifest=entries()
    )
    return [finding.path for finding in findings]


# Cut by rows, or as the plan says


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 63, 64, 65, 1000])
@pytest.mark.parametrize("prompt", [1, 2, 53, 64, 65, 129])
def test_chunks_of_equal_rows_cover_the_prompt_once(prompt: int, rows: int) -> None:
    chunks = prefill_partition(workload(prompt, rows))
    assert [p for start, end in chunks for p in range(start, end)] == list(range(prompt))
    assert all(end - start == rows for start, end in chunks[:-1])
    assert 1 <= chunks[-1][1] - chunks[-1][0] <= rows


def test_listed_intervals_are_taken_as_they_are() -> None:
    assert prefill_partition(workload(5, 3, [[0, 1], [1, 4], [4, 5]])) == ((0, 1), (1, 4), (4, 5))


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_of_a_prompt_is_valid_and_any_lost_or_doubled_position_is_not(seed: int) -> None:
    rng = random.Random(seed)
    prompt = rng.randint(2, 40)
    cuts = sorted(rng.sample(range(1, prompt), rng.randint(1, prompt - 1)))
    intervals = [list(pair) for pair in zip([0, *cuts], [*cuts, prompt], strict=True)]
    assert list(partition_faults(workload(prompt, prompt, intervals))) == []
    index = rng.randrange(len(intervals))
    for side in (0, 1):
        for step in (-1, 1):
            moved = [list(interval) for interval in intervals]
            moved[index][side] += step
            assert list(partition_faults(workload(prompt, prompt + 1, moved))), (moved, prompt)


def test_a_partition_is_read_by_everyone_who_counts_steps() -> None:
    cut = workload(5, 3, [[0, 1], [1, 4], [4, 5]])
    chunks = schedule_of(cut, SPEC).chunks
    assert [(c.index, c.start_position, c.token_ids, c.is_last) for c in chunks] == [
        (0, 0, (0,), False),
        (1, 1, (1, 2, 3), False),
        (2, 4, (4,), True),
    ]
    assert [
        (s.phase, s.step, s.start_position, s.num_rows, s.chooses) for s in planned_steps(cut, SPEC)
    ] == [
        ("prefill", 0, 0, 1, False),
        ("prefill", 1, 1, 3, False),
        ("prefill", 2, 4, 1, True),
        ("decode", 0, 5, 1, True),
        ("decode", 1, 6, 1, True),
    ]
    assert planned_geometry(cut) == "prefill=1x1+1x3+1x1,decode=2,positions=7"


@pytest.mark.parametrize("rows", [1, 2, 3, 64])
def test_listing_the_equal_chunks_changes_no_step(rows: int) -> None:
    plain = workload(7, rows)
    listed = workload(7, rows, [list(interval) for interval in prefill_partition(plain)])
    assert schedule_of(listed, SPEC) == schedule_of(plain, SPEC)
    assert planned_steps(listed, SPEC) == planned_steps(plain, SPEC)
    assert planned_geometry(listed) == planned_geometry(plain)


# What is refused


VALID: list[Intervals] = [[[0, 2], [2, 3]], [[0, 1], [1, 3]], [[0, 1], [1, 2], [2, 3]]]


@pytest.mark.parametrize("partition", VALID)
def test_a_partition_that_is_ordered_gap_free_and_complete_breaks_no_rule(
    partition: Intervals,
) -> None:
    document = with_partition(partition)
    assert places(document) == []
    plan = parse_plan(file_of(document), where="test").plan
    assert plan.workload is not None
    assert plan.workload.prefill_partition == tuple(tuple(interval) for interval in partition)
    assert plan_to_document(plan) == {k: v for k, v in document.items() if k != "digest"}


@pytest.mark.parametrize(
    ("partition", "place", "says"),
    [
        ([[1, 3]], 0, "starts at 1, expected 0"),
        ([[0, 1], [2, 3]], 1, "starts at 2, expected 1"),
        ([[0, 2], [1, 3]], 1, "starts at 1, expected 2"),
        ([[2, 3], [0, 2]], 0, "starts at 2, expected 0"),
        ([[0, 2], [0, 2], [2, 3]], 1, "starts at 0, expected 2"),
        ([[0, 2]], 0, "ends at 2, expected 3"),
        ([[0, 2], [2, 4]], 1, "ends at 4, expected 3"),
        ([[0, 2], [2, 3], [3, 4]], 2, "ends at 4, expected 3"),
        ([[0, 0], [0, 2], [2, 3]], 0, "holds no row"),
        ([[0, 2], [2, 3], [3, 3]], 2, "holds no row"),
        ([[0, 2], [2, 1], [1, 3]], 1, "holds no row"),
        ([[0, 3]], 0, "more than chunk_rows = 2 rows"),
    ],
)
def test_a_wrong_partition_is_found_at_its_place(
    partition: Intervals, place: int, says: str
) -> None:
    document = with_partition(partition)
    findings = check_plan(
        loaded(document), environment=environment(), support=FakeSupport(), manifest=entries()
    )
    path = f"$.workload.prefill_partition[{place}]"
    assert any((f.path, f.rule) == (path, "workload") and says in f.message for f in findings)
    assert {finding.rule for finding in findings} == {"workload"}


def test_every_fault_of_a_partition_is_listed() -> None:
    assert places(with_partition([[1, 1], [2, 5], [4, 9]])) == [
        *["$.workload.prefill_partition[0]"] * 2,
        *["$.workload.prefill_partition[1]"] * 2,
        *["$.workload.prefill_partition[2]"] * 3,
    ]


BAD_BOUNDS = (True, False, -1, 1.0, 0.5, "1", None, [1], (1 << 20) + 1)


@pytest.mark.parametrize("bad", BAD_BOUNDS, ids=repr)
@pytest.mark.parametrize("side", [0, 1])
def test_a_bound_that_is_no_position_is_refused_by_its_place(bad: Any, side: int) -> None:
    partition: Intervals = [[0, 1], [1, 3]]
    partition[1][side] = bad
    path = f"$.workload.prefill_partition[1][{side}]"
    with pytest.raises(PlanError) as caught:
        parse_plan(file_of(with_partition(partition)), where="test")
    assert path in [finding.path for finding in caught.value.findings]


@pytest.mark.parametrize(
    ("partition", "place"),
    [
        ([], ""),
        (None, ""),
        ("0-3", ""),
        ({"0": 3}, ""),
        ([[]], "[0]"),
        ([[0, 1], [1]], "[1]"),
        ([[0, 1, 3]], "[0]"),
        ([3], "[0]"),
        ([[0, 1], {"start": 1}], "[1]"),
    ],
)
def test_what_is_no_list_of_intervals_is_refused_by_its_place(partition: Any, place: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(file_of(with_partition(partition)), where="test")
    path = f"$.workload.prefill_partition{place}"
    assert path in [finding.path for finding in caught.value.findings]


def test_bounds_that_are_no_integers_are_faults_whoever_asks() -> None:
    for bad in (True, False, 1.0, "1", None):
        cut: Any = replace(workload(3, 3), prefill_partition=((0, bad), (bad, 3)))
        assert [index for index, _ in partition_faults(cut)] == [0, 1, 1]
    short: Any = replace(workload(3, 3), prefill_partition=((0, 1, 3),))
    assert [index for index, _ in partition_faults(short)] == [0, 0]
    empty = replace(workload(3, 3), prefill_partition=())
    assert [index for index, _ in partition_faults(empty)] == [0]


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "2", None, [2]])
def test_a_page_size_that_is_none_is_refused_by_its_place(size: Any) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(file_of(corrupted(lambda d: d["workload"].update(page_size=size))), where="test")
    assert [finding.path for finding in caught.value.findings] == ["$.workload.page_size"]


# What older plans keep


@pytest.mark.parametrize(
    ("field", "value"), [("prefill_partition", [[0, 2], [2, 3]]), ("page_size", 16)]
)
def test_the_new_fields_are_absent_by_default_and_change_nothing_else(
    field: str, value: Any
) -> None:
    document = native_document()
    plan = parse_plan(file_of(document), where="test").plan
    assert plan.workload is not None
    assert getattr(plan.workload, field) is None
    assert field not in plan_to_document(plan)["workload"]
    changed = corrupted(lambda d: d["workload"].update({field: value}))
    assert changed["digest"] != document["digest"]
    again = plan_to_document(parse_plan(file_of(changed), where="test").plan)
    assert again["workload"] == document["workload"] | {field: value}
    assert recipe_digest(changed) != recipe_digest(document)


def test_what_decides_the_reference_is_in_its_recipe() -> None:
    changes: list[Callable[[Document], object]] = [
        lambda d: d["workload"].update(prefill_partition=[[0, 3]]),
        lambda d: d["workload"].update(prefill_partition=[[0, 2], [2, 3]]),
        lambda d: d["workload"].update(page_size=2),
        lambda d: d.update(eviction_policy="let-go/1"),
        lambda d: d.update(eviction_policy="let-go/2"),
    ]
    digests = {recipe_digest(corrupted(change)) for change in changes}
    assert len(digests | {recipe_digest(native_document())}) == len(changes) + 1


# Made when no plan could list a partition, a page size or an eviction policy.
RECIPES = {
    "tiny_llama": "sha256:f0f01a8a78d7e69a7bf66c717dd345b22db4477a73b30640c689974cef98ca4d",
    "tiny_llama_streaming": (
        "sha256:f0f01a8a78d7e69a7bf66c717dd345b22db4477a73b30640c689974cef98ca4d"
    ),
    "quickstart": "sha256:0bce5a08b036aa2a0a9723fdbb4bf16141fda2b6cdfe716056cfa60eaac64ec4",
    "smollm2_hub": "sha256:9857aea9c544e264ce6c7587ba99299d61971f79388e52af5107b3b94cc7ae9e",
}


@pytest.mark.parametrize("name", RECIPES)
def test_plans_that_were_frozen_before_keep_bytes_digest_and_recipe(
    repo_root: Path, name: str
) -> None:
    path = repo_root / "plans" / f"{name}.json"
    plan = load_plan(path)
    document = plan_to_document(plan.plan)
    document["digest"] = plan_digest(document)
    assert plan_file_bytes(document) == path.read_bytes()
    assert document["digest"] == plan.plan.digest
    experiment = repo_root / "experiments" / "experiment" / f"{name}.yaml"
    assert f'digest: "{plan.plan.digest}"' in experiment.read_text()
    assert recipe_digest(plan.document) == RECIPES[name]


def test_the_partition_and_the_page_size_are_shown() -> None:
    plain = show_plan(loaded(native_document()))
    rows = native_document()["workload"]["chunk_rows"]
    assert f"chunks of {rows}, " in plain
    assert "in pages of" not in plain
    assert "chunks of 1, 2, " in show_plan(loaded(with_partition([[0, 1], [1, 3]])))
    paged = corrupted(lambda d: d["workload"].update(page_size=16))
    positions = native_document()["workload"]["max_positions"]
    assert f"{positions} positions in pages of 16" in show_plan(loaded(paged))
    long = corrupted(
        lambda d: d["workload"].update(prefill_partition=[[i, i + 1] for i in range(10_000)])
    )
    assert len(show_plan(loaded(long))) < len(plain) + 1000

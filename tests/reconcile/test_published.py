import copy
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.canonical import parse_json
from harness.errors import InvalidInputError
from harness.plan.format import plan_digest, plan_file_bytes
from harness.plan.load import LoadedPlan, parse_plan
from harness.reconcile.compare import find, json_path
from harness.reconcile.published import PublishedReport, audit_published

Place = tuple[str | int, ...]

# What nothing in the pair determines, and why:
UNBOUND_FACTS = {
    # a calculated bound whose fetched bytes neither file holds (at least the staging, though)
    "$.memory.transient_upper_bound_bytes",
    # who made the program that ran
    "$.provenance.freetoken_base_sha",
    "$.provenance.inferswarm_issue",
    # what the machine was called and had installed
    "$.resources.device",
    "$.resources.physical.cuda_runtime",
    "$.resources.physical.gpu_compute_capability[0]",
    "$.resources.physical.gpu_compute_capability[1]",
    "$.resources.physical.gpu_name",
    "$.resources.physical.hostname",
    "$.resources.physical.torch_version",
}
# Measured at each of the six checkpoints. All but swap lie between bounds: a change that stays
# inside them cannot be told from another measurement.
BOUNDED_TELEMETRY = (
    "cuda_allocated_bytes",
    "cuda_peak_allocated_bytes",
    "process.VmHWM_kib",
    "ru_maxrss_kib",
    "vmstat.pgfault",
    "vmstat.pgmajfault",
    "vmstat.pswpin",
    "vmstat.pswpout",
)
FREE_TELEMETRY = ("process.VmSwap_kib",)
UNBOUND = UNBOUND_FACTS | {
    f"$.observed.process_checkpoints[{index}].{field}"
    for index in range(6)
    for field in BOUNDED_TELEMETRY + FREE_TELEMETRY
}


@cache
def load_pair(folder: Path) -> tuple[LoadedPlan, dict[str, Any]]:
    data = gzip.decompress((folder / "frozen-plan.json.gz").read_bytes())
    result = parse_json((folder / "result.json").read_bytes(), where="result.json")
    return parse_plan(data, where="frozen-plan.json"), result


@pytest.fixture
def plan(shared_r1: Path) -> LoadedPlan:
    return load_pair(shared_r1)[0]


@pytest.fixture
def result(shared_r1: Path) -> dict[str, Any]:
    return load_pair(shared_r1)[1]


def places(document: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every place of a document with its value, containers included."""
    yield place, document
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*place, key))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from places(value, (*place, index))


def changed(document: Any, place: Place, value: Any) -> Any:
    """A copy with another value at ``place``; everything beside the path is shared."""
    if not place:
        return value
    copied = copy.copy(document)
    copied[place[0]] = changed(document[place[0]], place[1:], value)
    return copied


def names(report: PublishedReport, path: str) -> bool:
    """Whether some difference names the place itself, or a whole that it is part of."""
    return any(
        path == difference.path
        or path.startswith((f"{difference.path}.", f"{difference.path}["))
        or f"{path} = " in difference.got
        for difference in report.differences
    )


def other(value: Any) -> list[Any]:
    """Other values of the same type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, float):
        return [value + 0.5, float(f"{value + 1e-9:.12f}")]
    return [value + "x", ""]


def test_the_published_pair_passes(plan: LoadedPlan, result: dict[str, Any]) -> None:
    report = audit_published(plan, result)
    assert (report.status, report.differences) == ("passed", ())
    assert {entry.path for entry in report.unbound} == UNBOUND
    assert all(entry.reason in ("telemetry", "calculated", "declared") for entry in report.unbound)


def test_every_changed_leaf_is_refused_or_unbound(plan: LoadedPlan, result: dict[str, Any]) -> None:
    missed = []
    for place, value in places(result):
        if isinstance(value, dict | list):
            continue
        path = json_path(place)
        for mutation in other(value):
            report = audit_published(plan, changed(result, place, mutation))
            found = report.status == "failed" and names(report, path)
            if not found and path not in UNBOUND:
                missed.append((path, mutation))
    assert missed == []


@pytest.mark.slow
def test_every_place_of_another_type_is_refused(plan: LoadedPlan, result: dict[str, Any]) -> None:
    missed = []
    for place, value in places(result):
        for mutation in (None, [], {}, "text", -1, 0.25):
            if not place or type(mutation) is type(value):
                continue
            report = audit_published(plan, changed(result, place, mutation))
            if not names(report, json_path(place)):
                missed.append((place, mutation))
    assert missed == []


def test_no_count_is_negative(plan: LoadedPlan, result: dict[str, Any]) -> None:
    for place, value in places(result):
        if type(value) is int:
            assert names(audit_published(plan, changed(result, place, -1)), json_path(place)), place


def test_integers_and_floats_and_booleans_are_told_apart(
    plan: LoadedPlan, result: dict[str, Any]
) -> None:
    for place, value in places(result):
        swapped: Any = None
        if isinstance(value, bool):
            swapped = int(value)
        elif isinstance(value, int):
            swapped = float(value)
        elif isinstance(value, float):
            swapped = int(value)
        else:
            continue
        report = audit_published(plan, changed(result, place, swapped))
        assert names(report, json_path(place)), (place, swapped)


def test_every_removed_key_is_refused(plan: LoadedPlan, result: dict[str, Any]) -> None:
    for place, value in places(result):
        if not isinstance(value, dict):
            continue
        for key in value:
            remaining = {name: item for name, item in value.items() if name != key}
            mutated = changed(result, place, remaining)
            report = audit_published(plan, mutated)
            assert names(report, json_path((*place, key))), (place, key)


def test_every_added_key_is_refused(plan: LoadedPlan, result: dict[str, Any]) -> None:
    for place, value in places(result):
        if isinstance(value, dict):
            more = value | {"planted_key": 0}
            report = audit_published(plan, changed(result, place, more))
            assert [d.path for d in report.differences] == [json_path((*place, "planted_key"))]


def test_every_removed_repeated_or_added_element_is_refused(
    plan: LoadedPlan, result: dict[str, Any]
) -> None:
    for place, value in places(result):
        if not isinstance(value, list):
            continue
        for index in range(len(value)):
            removed = value[:index] + value[index + 1 :]
            repeated = value[: index + 1] + value[index:]
            for mutation in (removed, repeated):
                report = audit_published(plan, changed(result, place, mutation))
                inside = json_path(place) + "["
                assert any(d.path.startswith(inside) for d in report.differences), (place, index)
        report = audit_published(plan, changed(result, place, [*value, "planted"]))
        assert names(report, json_path((*place, len(value))))


def test_reordered_elements_are_refused(plan: LoadedPlan, result: dict[str, Any]) -> None:
    for place, value in places(result):
        if isinstance(value, list) and value != value[::-1] and "capability" not in str(place[-1]):
            report = audit_published(plan, changed(result, place, value[::-1]))
            assert report.status == "failed", place


CHECKPOINT = "$.observed.process_checkpoints"


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize("field", BOUNDED_TELEMETRY)
def test_bounded_telemetry_is_refused_outside_its_bounds(
    plan: LoadedPlan, result: dict[str, Any], field: str, index: int
) -> None:
    place: Place = ("observed", "process_checkpoints", index, *field.split("."))
    counter = field.startswith("vmstat")
    # No counter has an upper end after the last checkpoint, and none can fall below the first.
    values = [2**52] if not counter or index < 5 else []
    before = result["observed"]["process_checkpoints"][max(index - 1, 0)]
    for step in field.split("."):
        before = before[step]
    if index and before and field != "cuda_allocated_bytes":
        values.append(before - 1)
    for value in values:
        report = audit_published(plan, changed(result, place, value))
        assert names(report, f"{CHECKPOINT}[{index}].{field}"), value


def test_device_bytes_below_the_declared_ones_are_refused(
    plan: LoadedPlan, result: dict[str, Any]
) -> None:
    # 10,391,381,656 bytes are declared after release: 8,636,596,224 + 1,689,347,736 + twice
    # 32,718,848.
    place: Place = ("observed", "process_checkpoints", 4, "cuda_allocated_bytes")
    assert audit_published(plan, changed(result, place, 10_391_381_656)).status == "passed"
    report = audit_published(plan, changed(result, place, 10_391_381_655))
    assert [d.path for d in report.differences] == [json_path(place)]


def test_the_transient_bound_is_at_least_the_staging(
    plan: LoadedPlan, result: dict[str, Any]
) -> None:
    place: Place = ("memory", "transient_upper_bound_bytes")
    assert audit_published(plan, changed(result, place, 8_636_596_224)).status == "passed"
    assert audit_published(plan, changed(result, place, 8_636_596_223)).status == "failed"


def test_all_differences_are_listed_and_sorted(plan: LoadedPlan, result: dict[str, Any]) -> None:
    mutated = changed(result, ("status",), "OTHER")
    mutated = changed(mutated, ("correctness", "decode_runs", 2, "repetition"), 7)
    mutated = changed(mutated, ("memory", "persistent_required_bytes"), 1)
    paths = [difference.path for difference in audit_published(plan, mutated).differences]
    assert paths == [
        "$.correctness.decode_runs[2].repetition",
        "$.memory.persistent_required_bytes",
        "$.status",
    ]


def test_a_result_of_another_plan_is_refused(plan: LoadedPlan, result: dict[str, Any]) -> None:
    document = json.loads(json.dumps(plan.document))
    document["materializations"][1]["expected_bytes"] += 2
    document["digest"] = plan_digest(document)
    other_plan = parse_plan(plan_file_bytes(document), where="other")
    paths = {d.path for d in audit_published(other_plan, result).differences}
    assert {
        "$.plan.digest",
        "$.plan.file_sha256",
        "$.validation.digest",
        '$.validation.required_bytes_by_memory["gpu0.vram"]',
        "$.intended.materializations[1].expected_bytes",
        "$.observed.materializations[1].observed_bytes",
        "$.memory.persistent_required_bytes",
    } <= paths


@pytest.mark.parametrize("result_document", [None, [], "text", 3, {}])
def test_a_result_that_is_no_result_is_a_difference(plan: LoadedPlan, result_document: Any) -> None:
    report = audit_published(plan, result_document)
    assert report.status == "failed"
    assert report.differences


def test_a_plan_of_another_schema_is_invalid_input(
    plan: LoadedPlan, result: dict[str, Any]
) -> None:
    native = replace(plan, plan=replace(plan.plan, schema="harness.plan/1"))
    with pytest.raises(InvalidInputError, match="published schema"):
        audit_published(native, result)


@pytest.mark.parametrize("index", range(1, 6))
@pytest.mark.parametrize(
    ("low", "high"),
    [
        (("process", "VmRSS_kib"), ("process", "VmHWM_kib")),
        (("cuda_allocated_bytes",), ("cuda_peak_allocated_bytes",)),
        (("vmstat", "pgmajfault"), ("vmstat", "pgfault")),
    ],
)
def test_a_mark_below_what_it_marks_is_refused_naming_both(
    plan: LoadedPlan, result: dict[str, Any], index: int, low: Place, high: Place
) -> None:
    root: Place = ("observed", "process_checkpoints", index)
    now = find(result, (*root, *low))
    report = audit_published(plan, changed(result, (*root, *high), now - 1))
    assert any(
        json_path((*root, *low)) in d.got and d.path == json_path((*root, *high))
        for d in report.differences
    )

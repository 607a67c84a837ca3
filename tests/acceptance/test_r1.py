"""The published plan and result: accepted as they are, refused when anything in them changes."""

import copy
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
Document = dict[str, Any]


def test_the_published_plan_is_accepted(command: Command, r1_plan: Path, r1_result: Path) -> None:
    durations = []
    while len(durations) < 6 and min(durations, default=9.0) >= 1.0:
        start, used = time.perf_counter(), os.times()
        outcome = command("plan", "check", "--json", "--environment", r1_result, r1_plan)
        now = os.times()
        # A busy machine makes the wall clock late; the processor's time is what the command needs.
        processor = now.children_user + now.children_system
        processor -= used.children_user + used.children_system
        durations.append(min(time.perf_counter() - start, processor))
        assert outcome.code == 0, outcome
        assert outcome.json["findings"] == []
        assert outcome.json["digest"].startswith("sha256:430f84e4")
    assert min(durations) < 1.0


def test_the_published_pair_reconciles(command: Command, r1_plan: Path, r1_result: Path) -> None:
    outcome = command("reconcile", "--json", r1_plan, r1_result)
    assert outcome.code == 0, outcome
    assert outcome.json["status"] == "passed"
    assert outcome.json["differences"] == []
    unbound = {entry["path"] for entry in outcome.json["unbound"]}
    assert "$.memory.transient_upper_bound_bytes" in unbound
    assert any(path.endswith("vmstat.pgfault") for path in unbound)


@pytest.mark.slow
def test_the_published_plan_is_not_run_here(
    command: Command, r1_plan: Path, tmp_path: Path
) -> None:
    assert command("run", f"plan={r1_plan}", f"store={tmp_path / 'store'}").code in (2, 3)
    assert not (tmp_path / "store" / "records").exists()


def mat(plan: Document, index: int) -> Document:
    item: Document = plan["materializations"][index]
    return item


PLAN_CHANGES: list[tuple[str, Callable[[Document], object]]] = [
    ("$.resources.swarm_id", lambda p: p["resources"].update(swarm_id="x")),
    (
        "$.logical_state_units[4].id",
        lambda p: p["logical_state_units"].append(dict(p["logical_state_units"][0])),
    ),
    ("$.materializations[5].id", lambda p: p["materializations"].append(dict(mat(p, 1)))),
    ("$.execution[1].id", lambda p: p["execution"].append(copy.deepcopy(p["execution"][0]))),
    (
        "$.logical_state_units[0].backing_source_id",
        lambda p: p["logical_state_units"][0].update(backing_source_id="x"),
    ),
    ("$.materializations[1].path_id", lambda p: mat(p, 1).update(path_id="x")),
    ("$.materializations[2].representation", lambda p: mat(p, 2).update(representation="x")),
    ("$.materializations[0].persistence", lambda p: mat(p, 0).update(persistence="persistent")),
    ("$.materializations[1].role", lambda p: mat(p, 1).update(role="mutable_authority")),
    ("$.materializations[1].role", lambda p: mat(p, 1).update(role="nonsense")),
    (
        "$.authorities[0].materialization_id",
        lambda p: p["authorities"][0].update(materialization_id="x"),
    ),
    (
        "$.authorities[0].materialization_id",
        lambda p: p["authorities"][0].update(materialization_id="mat.replay.vram"),
    ),
    ("$.logical_state_units[2].id", lambda p: p["authorities"].clear()),
    ("$.execution[0].compute_unit_id", lambda p: p["execution"][0].update(compute_unit_id="x")),
    (
        "$.execution[0].required_state[0]",
        lambda p: p["execution"][0]["required_state"][0].update(representations=["x"]),
    ),
    ("$.execution[0].strategy_unit", lambda p: p["execution"][0].update(strategy_unit="x")),
    ("$.materializations[4].expected_bytes", lambda p: mat(p, 4).update(expected_bytes=-1)),
    (
        "$.logical_state_units[3].reconstruction_inputs[0]",
        lambda p: p["logical_state_units"][3].update(reconstruction_inputs=["x"]),
    ),
    (
        "$.adapter_data.allowed_tensor_keys[44362]",
        lambda p: p["adapter_data"]["allowed_tensor_keys"].append(
            p["adapter_data"]["allowed_tensor_keys"][0]
        ),
    ),
    (
        "$.resources.nodes[0].memory_resources[0].capacity_bytes",
        lambda p: p["resources"]["nodes"][0]["memory_resources"][0].update(capacity_bytes=10**10),
    ),
    ("$", lambda p: p.update(extra=1)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "change"),
    PLAN_CHANGES,
    ids=[f"{i} {path}" for i, (path, _) in enumerate(PLAN_CHANGES)],
)
def test_a_broken_published_plan_is_refused(
    command: Command,
    r1_plan: Path,
    r1_result: Path,
    tmp_path: Path,
    tools: Any,
    path: str,
    change: Callable[[Document], object],
) -> None:
    document = json.loads(r1_plan.read_bytes())
    change(document)
    changed = tmp_path / "plan.json"
    changed.write_bytes(tools.plan_bytes(tools.sign(document)))
    outcome = command("plan", "check", "--json", "--environment", r1_result, changed)
    assert outcome.code == 2, outcome
    assert path in [finding["path"] for finding in outcome.json["findings"]]


BOUND = ("plan", "intended", "correctness", "memory", "status", "passed", "validation")
OBSERVED = ("materializations", "execution", "authorities")
CHECKPOINT = ("VmRSS_kib", "RssAnon_kib", "RssFile_kib", "RssShmem_kib")
UNBOUND = {"$.memory.transient_upper_bound_bytes"}


def bound_leaves(tools: Any, result: Document) -> list[tuple[str, tuple[Any, ...], Any]]:
    chosen = []
    for path, keys, value in tools.leaves(result):
        if (
            keys[0] in BOUND
            or (keys[0] == "observed" and keys[1] in OBSERVED)
            or (
                keys[:2] == ("observed", "process_checkpoints")
                and "bytes" in str(keys[3])
                and not str(keys[3]).startswith("cuda")
            )
        ) and path not in UNBOUND:
            chosen.append((path, keys, value))
    return chosen


def named(outcome: Any, path: str) -> bool:
    """Some difference lies at this place, or just above or below it."""
    places = [entry["path"] for entry in outcome.json["differences"]]
    return any(
        place == path
        or place.startswith((path + ".", path + "["))
        or (path.startswith(place) and path[len(place) : len(place) + 1] in (".", "["))
        for place in places
        if place != "$"
    )


def reconcile(command: Command, plan: Path, tmp_path: Path, result: Document) -> Any:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result, indent=2, sort_keys=True) + "\n")
    return command("reconcile", "--json", plan, path)


@pytest.mark.slow
def test_every_thirteenth_bound_value_is_refused_by_itself(
    command: Command, r1_plan: Path, r1_result: Path, tmp_path: Path, tools: Any
) -> None:
    result = json.loads(r1_result.read_bytes())
    leaves = bound_leaves(tools, result)
    assert len(leaves) > 250
    failures = []
    for path, keys, value in leaves[::13]:
        changed = copy.deepcopy(result)
        tools.put(changed, keys, tools.other(value))
        outcome = reconcile(command, r1_plan, tmp_path, changed)
        if outcome.code != 1 or not named(outcome, path):
            failures.append((path, outcome.code, outcome.json["differences"][:3]))
    assert failures == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "section",
    ["plan", "correctness", "memory", "intended", "materializations", "validation"],
)
def test_every_value_of_a_section_is_named(
    command: Command, r1_plan: Path, r1_result: Path, tmp_path: Path, tools: Any, section: str
) -> None:
    result = json.loads(r1_result.read_bytes())
    identities = {"id", "materialization_id"}
    changed = copy.deepcopy(result)
    places = []
    for path, keys, value in bound_leaves(tools, result):
        if section in keys[:2] and keys[-1] not in identities and keys[0] != "reconciliation":
            if section == "materializations" and keys[0] != "observed":
                continue
            tools.put(changed, keys, tools.other(value))
            places.append(path)
    assert len(places) > 1
    outcome = reconcile(command, r1_plan, tmp_path, changed)
    assert outcome.code == 1
    assert [path for path in places if not named(outcome, path)] == []


@pytest.mark.slow
def test_small_sections_are_refused_value_by_value(
    command: Command, r1_plan: Path, r1_result: Path, tmp_path: Path, tools: Any
) -> None:
    result = json.loads(r1_result.read_bytes())
    for keys in (
        ("plan", "digest"),
        ("plan", "file_sha256"),
        ("observed", "authorities", 0, "lineage"),
        ("observed", "execution", 0, "compute_unit_id"),
        ("correctness", "post_release_loader_sentinels", "whole_shard_loader_calls"),
    ):
        changed = copy.deepcopy(result)
        value: Any = changed
        for key in keys:
            value = value[key]
        tools.put(changed, keys, tools.other(value))
        outcome = reconcile(command, r1_plan, tmp_path, changed)
        assert outcome.code == 1, outcome
        path = "$" + "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys)
        assert named(outcome, path), (path, outcome)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("process", "VmRSS_kib"), 1),
        (("process", "RssAnon_kib"), 1),
        (("process", "RssFile_kib"), 1),
        (("process", "RssShmem_kib"), 1),
        (("process", "VmHWM_kib"), 1),
        (("cuda_allocated_bytes",), 1),
        (("host_expert_source_bank_bytes",), 1),
        (("gpu_expert_bank_cache_bytes",), 1),
        (("label",), "x"),
        (("measurement_status",), "CALCULATED"),
    ],
)
def test_checkpoint_invariants(
    command: Command,
    r1_plan: Path,
    r1_result: Path,
    tmp_path: Path,
    tools: Any,
    keys: tuple[str, ...],
    value: Any,
) -> None:
    result = json.loads(r1_result.read_bytes())
    for index in (2, 5):
        changed = copy.deepcopy(result)
        tools.put(changed, ("observed", "process_checkpoints", index, *keys), value)
        outcome = reconcile(command, r1_plan, tmp_path, changed)
        assert outcome.code == 1, outcome
        places = [entry["path"] for entry in outcome.json["differences"]]
        assert any(f"process_checkpoints[{index}]" in place for place in places), places


@pytest.mark.slow
def test_structural_changes_are_refused(
    command: Command, r1_plan: Path, r1_result: Path, tmp_path: Path
) -> None:
    result = json.loads(r1_result.read_bytes())
    changes: list[Callable[[Document], object]] = [
        lambda r: r["observed"]["materializations"].pop(),
        lambda r: r["observed"]["materializations"].append(
            {**r["observed"]["materializations"][1], "materialization_id": "mat.extra"}
        ),
        lambda r: r["observed"]["authorities"].clear(),
        lambda r: r["observed"]["authorities"].append(dict(r["observed"]["authorities"][0])),
        lambda r: r["observed"]["execution"].clear(),
        lambda r: r["observed"]["process_checkpoints"].pop(),
        lambda r: r["observed"]["process_checkpoints"].reverse(),
        lambda r: r["correctness"]["decode_runs"].pop(),
        lambda r: r["intended"]["materializations"].pop(),
        lambda r: r["intended"]["authorities"].clear(),
        lambda r: r["observed"]["materializations"][0].update(
            release_qualifying_materialization_ids=[]
        ),
        lambda r: r["observed"]["materializations"][0].update(
            release_qualifying_materialization_ids=["mat.routed.ram-stage"]
        ),
        lambda r: r["correctness"].pop("post_release_loader_sentinels"),
        lambda r: r.pop("memory"),
    ]
    for number, change in enumerate(changes):
        changed = copy.deepcopy(result)
        change(changed)
        outcome = reconcile(command, r1_plan, tmp_path, changed)
        assert outcome.code in (1, 2), (number, outcome)


@pytest.mark.slow
def test_unbound_telemetry_does_not_fail(
    command: Command, r1_plan: Path, r1_result: Path, tmp_path: Path
) -> None:
    result = json.loads(r1_result.read_bytes())
    result["observed"]["process_checkpoints"][5]["vmstat"]["pgfault"] += 1
    result["memory"]["transient_upper_bound_bytes"] += 1
    outcome = reconcile(command, r1_plan, tmp_path, result)
    assert outcome.code == 0, outcome
    unbound = {entry["path"] for entry in outcome.json["unbound"]}
    assert "$.memory.transient_upper_bound_bytes" in unbound
    assert "$.observed.process_checkpoints[5].vmstat.pgfault" in unbound

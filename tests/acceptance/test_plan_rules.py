"""``plan check`` names every broken rule and its place."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
Document = dict[str, Any]
Change = Callable[[Document], object]


def node(plan: Document) -> Document:
    first: Document = plan["resources"]["nodes"][0]
    return first


def copied(items: list[Any], index: int) -> None:
    items.append(copy.deepcopy(items[index]))


def mat(plan: Document, identity: str) -> Document:
    found: Document = next(item for item in plan["materializations"] if item["id"] == identity)
    return found


def set_in(item: Document, **fields: Any) -> None:
    item.update(fields)


def sole(plan: Document) -> Document:
    execution: Document = plan["execution"][0]
    return execution


RULES: list[tuple[str, str, Change]] = [
    (
        "rule-01",
        "$.resources.backing_sources[0].repository",
        lambda p: set_in(p["model"], repository="other/one"),
    ),
    (
        "rule-01",
        "$.resources.backing_sources[0].revision",
        lambda p: set_in(p["model"], revision="other"),
    ),
    ("rule-02", "$.resources.swarm_id", lambda p: set_in(p["resources"], swarm_id="other")),
    ("rule-03", "$.resources.nodes[1].id", lambda p: copied(p["resources"]["nodes"], 0)),
    ("rule-03", "$.logical_state_units[5].id", lambda p: copied(p["logical_state_units"], 0)),
    ("rule-03", "$.materializations[6].id", lambda p: copied(p["materializations"], 2)),
    ("rule-03", "$.execution[1].id", lambda p: copied(p["execution"], 0)),
    (
        "rule-04",
        "$.resources.nodes[0].compute_units[1].id",
        lambda p: copied(node(p)["compute_units"], 0),
    ),
    (
        "rule-04",
        "$.resources.nodes[0].memory_resources[2].id",
        lambda p: copied(node(p)["memory_resources"], 0),
    ),
    (
        "rule-06",
        "$.logical_state_units[0].backing_source_id",
        lambda p: set_in(p["logical_state_units"][0], backing_source_id="x"),
    ),
    (
        "rule-07",
        "$.materializations[2].logical_state_id",
        lambda p: set_in(mat(p, "mat.rope.resident"), logical_state_id="x"),
    ),
    (
        "rule-07",
        "$.materializations[2].memory_resource_id",
        lambda p: set_in(mat(p, "mat.rope.resident"), memory_resource_id="x"),
    ),
    (
        "rule-07",
        "$.materializations[1].path_id",
        lambda p: set_in(mat(p, "mat.weights.resident"), path_id="x"),
    ),
    (
        "rule-08",
        "$.materializations[1].representation",
        lambda p: set_in(mat(p, "mat.weights.resident"), representation="x"),
    ),
    (
        "rule-09",
        "$.materializations[0].persistence",
        lambda p: set_in(mat(p, "mat.weights.stage"), persistence="persistent"),
    ),
    (
        "rule-10",
        "$.materializations[1].role",
        lambda p: set_in(mat(p, "mat.weights.resident"), role="mutable_authority"),
    ),
    (
        "rule-11",
        "$.materializations[1].memory_resource_id",
        lambda p: p["forbidden_persistent_materializations"].append(
            {"logical_state_id": "state.weights", "memory_resource_id": "accelerator0.vram"}
        ),
    ),
    (
        "rule-12",
        "$.resources.nodes[0].memory_resources[1].capacity_bytes",
        lambda p: set_in(node(p)["memory_resources"][1], capacity_bytes=7_000_000),
    ),
    (
        "rule-13",
        "$.authorities[0].materialization_id",
        lambda p: set_in(p["authorities"][0], materialization_id="x"),
    ),
    (
        "rule-13",
        "$.authorities[0].logical_state_id",
        lambda p: set_in(p["authorities"][0], logical_state_id="x"),
    ),
    ("rule-14", "$.logical_state_units[2].id", lambda p: p["authorities"].clear()),
    (
        "rule-14",
        "$.logical_state_units[2].id",
        lambda p: p["authorities"].append({**p["authorities"][0], "lineage": "x"}),
    ),
    ("rule-15", "$.execution[0].compute_unit_id", lambda p: set_in(sole(p), compute_unit_id="x")),
    (
        "rule-16",
        "$.execution[0].required_state[1]",
        lambda p: set_in(mat(p, "mat.rope.resident"), requirement="optional"),
    ),
    (
        "rule-16",
        "$.execution[0].required_state[0]",
        lambda p: set_in(sole(p)["required_state"][0], memory_resources=["node0.ram"]),
    ),
    ("rule-17", "$.execution[0].strategy_unit", lambda p: set_in(sole(p), strategy_unit="x")),
]
FAST = (2, 13, 17, 23)


@pytest.mark.parametrize(
    ("rule", "path", "change"),
    [
        pytest.param(*case, id=f"{i} {case[0]}", marks=[] if i in FAST else [pytest.mark.slow])
        for i, case in enumerate(RULES)
    ],
)
def test_a_broken_rule_is_named(
    command: Command, damaged_plan: Callable[..., Path], rule: str, path: str, change: Change
) -> None:
    outcome = command("plan", "check", "--json", damaged_plan(change))
    assert outcome.code == 2, outcome
    found = outcome.json["findings"]
    assert any(f["rule"].startswith(rule) and f["path"] == path for f in found), found
    assert all(f["message"] for f in found)


@pytest.mark.slow
def test_rule_1_digest(command: Command, damaged_plan: Callable[..., Path]) -> None:
    path = damaged_plan(lambda p: p.update(digest="sha256:" + "0" * 64), sign=False)
    outcome = command("plan", "check", "--json", path)
    assert outcome.code == 2
    assert "$.digest" in [finding["path"] for finding in outcome.json["findings"]]


@pytest.mark.slow
def test_rule_1_schema(command: Command, damaged_plan: Callable[..., Path]) -> None:
    outcome = command("plan", "check", damaged_plan(lambda p: p.update(schema="harness.plan/2")))
    assert outcome.code == 2
    assert "harness.plan/2" in outcome.err


def test_rule_5_the_units_and_memories_exist(
    command: Command, damaged_plan: Callable[..., Path], tmp_path: Path, committed: Document
) -> None:
    statement = committed["tiny_llama"][1]
    document = copy.deepcopy(statement["predicate"]["environment"])
    path = tmp_path / "environment.json"
    path.write_text(json.dumps(document))
    good = damaged_plan(lambda p: None)
    assert command("plan", "check", "--environment", path, good).code == 0
    del document["resources"]["nodes"][0]["memory_resources"][1]
    document["resources"]["nodes"][0]["compute_units"][0]["memory_resources"].pop()
    path.write_text(json.dumps(document))
    outcome = command("plan", "check", "--json", "--environment", path, good)
    assert outcome.code in (2, 3), outcome
    assert "accelerator0.vram" in outcome.out


@pytest.mark.slow
def test_the_environment_may_be_a_record(
    command: Command, repo_root: Path, committed: Document
) -> None:
    record = committed["quickstart"][0]
    for name in ("tiny_llama", "tiny_llama_streaming", "quickstart"):
        plan = repo_root / "plans" / f"{name}.json"
        outcome = command("plan", "check", "--json", "--environment", record, plan)
        assert (outcome.code, outcome.json["findings"]) == (0, []), outcome


def scattered(plan: Document) -> None:
    """Many independent faults at once."""
    mat(plan, "mat.weights.resident")["expected_bytes"] += 1
    plan["logical_state_units"][1]["reconstruction_inputs"] = ["x"]
    plan["authorities"][0]["materialization_id"] = "mat.replay.resident"
    copied(plan["adapter_data"]["allowed_tensor_keys"], 0)
    node(plan)["memory_resources"][0]["capacity_bytes"] = 7_000_000
    sole(plan)["compute_unit_id"] = "x"
    plan["workload"]["max_positions"] = 10
    plan["checks"]["acceptance"].append({"id": "x"})
    plan["checkpoint"]["files"][0]["name"] = "../x"


def test_all_errors_are_listed(command: Command, damaged_plan: Callable[..., Path]) -> None:
    path = damaged_plan(scattered)
    outcome = command("plan", "check", "--json", path)
    assert outcome.code == 2
    places = [finding["path"] for finding in outcome.json["findings"]]
    for place in (
        "$.materializations[1].expected_bytes",
        "$.logical_state_units[1].reconstruction_inputs[0]",
        "$.authorities[0].materialization_id",
        "$.adapter_data.allowed_tensor_keys[39]",
        "$.resources.nodes[0].memory_resources[0].capacity_bytes",
        "$.execution[0].compute_unit_id",
        "$.workload.max_positions",
        "$.checks.acceptance[23].id",
        "$.checkpoint.files[0].name",
    ):
        assert place in places, (place, places)
    text = command("plan", "check", path)
    assert all(place in text.text for place in places)


@pytest.mark.slow
def test_the_transient_peak_is_checked(command: Command, damaged_plan: Callable[..., Path]) -> None:
    path = damaged_plan(lambda p: set_in(node(p)["memory_resources"][0], capacity_bytes=7_000_000))
    outcome = command("plan", "check", "--json", path)
    assert outcome.code == 2
    assert [finding["path"] for finding in outcome.json["findings"]] == [
        "$.resources.nodes[0].memory_resources[0].capacity_bytes"
    ]


def malformed(plan: Document) -> None:
    """Many independent violations of the schema at once."""
    plan["extra"] = 1
    mats = plan["materializations"]
    mats[0]["role"] = "cache"
    mats[1]["requirement"] = "maybe"
    mats[2]["persistence"] = "sometimes"
    mats[3]["expected_bytes"] = -1
    mats[4]["expected_bytes"] = 1.5
    mats[5]["extra"] = 1
    plan["logical_state_units"][0]["semantic_class"] = "x"
    node(plan)["compute_units"][0]["kind"] = "abacus"
    node(plan)["memory_resources"][0]["kind"] = "paper"
    plan["resources"]["links"][0]["kind"] = "rope"
    plan["workload"]["sampling"] = "dice"
    plan["workload"]["decode_steps"] = True
    del plan["scope"]["proves"]


def test_every_schema_violation_is_named(
    command: Command, damaged_plan: Callable[..., Path]
) -> None:
    outcome = command("plan", "check", "--json", damaged_plan(malformed))
    assert outcome.code == 2
    places = [finding["path"] for finding in outcome.json["findings"]]
    for place in (
        "$",
        "$.materializations[0].role",
        "$.materializations[1].requirement",
        "$.materializations[2].persistence",
        "$.materializations[3].expected_bytes",
        "$.materializations[4].expected_bytes",
        "$.materializations[5]",
        "$.logical_state_units[0].semantic_class",
        "$.resources.nodes[0].compute_units[0].kind",
        "$.resources.nodes[0].memory_resources[0].kind",
        "$.resources.links[0].kind",
        "$.workload.sampling",
        "$.workload.decode_steps",
        "$.scope",
    ):
        assert place in places, (place, places)


def test_schema_and_rule_errors_are_listed_together(
    command: Command, damaged_plan: Callable[..., Path]
) -> None:
    def change(plan: Document) -> None:
        plan["workload"]["sampling"] = "dice"
        sole(plan)["compute_unit_id"] = "x"

    outcome = command("plan", "check", "--json", damaged_plan(change))
    assert outcome.code == 2
    places = [finding["path"] for finding in outcome.json["findings"]]
    assert "$.workload.sampling" in places
    assert "$.execution[0].compute_unit_id" in places


def test_a_machine_that_cannot_evaluate_is_3(
    command: Command, damaged_plan: Callable[..., Path], tmp_path: Path
) -> None:
    path = damaged_plan(lambda p: set_in(node(p)["memory_resources"][1], capacity_bytes=10**15))
    outcome = command("plan", "check", "--json", path)
    assert outcome.code == 3, outcome
    assert outcome.json["findings"] == []
    assert command("run", f"plan={path}", f"store={tmp_path / 'store'}").code == 3
    assert not list(tmp_path.glob("store/records/*"))


@pytest.mark.parametrize("words", [("plan", "check"), ("run",)], ids=["plan check", "run"])
def test_a_kernel_set_that_is_not_built_is_3(
    command: Command, damaged_plan: Callable[..., Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = damaged_plan(lambda p: set_in(p["determinism"], kernel_set="torch-cpu/999"))
    tail = [path] if words == ("plan", "check") else [f"plan={path}", f"store={tmp_path}"]
    outcome = command(*words, *tail)
    assert outcome.code == 3, outcome
    assert "torch-cpu/999" in outcome.text
    assert not list(tmp_path.glob("records/*"))


def test_a_broken_plan_starts_nothing(
    command: Command, damaged_plan: Callable[..., Path], tmp_path: Path
) -> None:
    path = damaged_plan(lambda p: p["authorities"].clear())
    outcome = command("run", f"plan={path}", f"store={tmp_path / 'store'}")
    assert outcome.code == 2, outcome
    assert "$.logical_state_units[2].id" in outcome.text
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_a_sidecar_that_disagrees_is_refused(
    command: Command, damaged_plan: Callable[..., Path]
) -> None:
    path = damaged_plan(lambda p: None)
    for content in ("0" * 64 + f"  {path.name}\n", "garbage", ""):
        path.with_name(path.name + ".sha256").write_text(content)
        assert command("plan", "check", path).code == 2, content

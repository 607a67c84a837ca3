"""Plans in which each stage has a node of its own, and what several machines have together."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.adapters.families import layout_for
from harness.errors import InvalidInputError, ResourceError
from harness.measure.environment import DeviceRequest, probe_environment
from harness.plan.bind import bind
from harness.plan.check import check_plan
from harness.plan.documents import plan_from_document
from harness.plan.environment import Environment
from harness.plan.load import LoadedPlan
from harness.plan.manifest import load_manifest
from harness.plan.nodes import facts_of, has_nodes, joined, misplaced
from harness.plan.stages import stage_views

DEVICE = DeviceRequest(
    kind="simulated", simulated_vram_bytes=64 << 20, system_ram_limit_bytes=512 << 20
)


@pytest.fixture(scope="module")
def plan(staged_plan: Callable[..., LoadedPlan]) -> LoadedPlan:
    return staged_plan("tiny_llama", 2, "realization.nodes=2")


@pytest.fixture(scope="module")
def machine() -> Environment:
    return probe_environment(DEVICE)


def findings(plan: LoadedPlan, change: Callable[[dict[str, Any]], object]) -> list[str]:
    document = copy.deepcopy(plan.document)
    change(document)
    assert plan.path is not None
    assert plan.plan.checkpoint is not None
    manifest = load_manifest(plan.path.parent, plan.plan.checkpoint.manifest)
    loaded = replace(plan, document=document, plan=plan_from_document(document))
    layout = layout_for(plan.plan.adapter_data.family or "")
    return [str(f) for f in check_plan(loaded, environment=None, support=layout, manifest=manifest)]


def test_everything_of_a_stage_is_on_its_node(plan: LoadedPlan) -> None:
    assert has_nodes(plan.plan)
    assert findings(plan, lambda document: None) == []
    for view in stage_views(plan.plan, None, None):
        (node,) = view.plan.resources.nodes
        assert node.id == f"{view.stage.id}.node0"
        names = {item.memory_resource_id for item in view.plan.materializations}
        assert names == {memory.id for memory in node.memory_resources}
        assert all(name.startswith(f"{view.stage.id}.") for name in names)
        paths = {item.path_id for item in view.plan.materializations} - {None}
        assert all(str(path).startswith(f"{view.stage.id}.") for path in paths)


def move_unit(document: dict[str, Any]) -> None:
    document["stages"][1]["compute_unit_id"] = "stage-0.accelerator0"
    document["execution"][1]["compute_unit_id"] = "stage-0.accelerator0"


def move_copy(document: dict[str, Any]) -> None:
    (item,) = [m for m in document["materializations"] if m["id"] == "stage-1.mat.kv.resident"]
    item["memory_resource_id"] = "stage-0.accelerator0.vram"


def third_node(document: dict[str, Any]) -> None:
    node = copy.deepcopy(document["resources"]["nodes"][1])
    node["id"] = "more"
    node["compute_units"], node["memory_resources"] = [], []
    document["resources"]["nodes"].append(node)


def drop_check(document: dict[str, Any]) -> None:
    checks = document["checks"]
    checks["acceptance"] = [c for c in checks["acceptance"] if c["id"] != "stages.machines"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (move_unit, "$.stages[1].compute_unit_id: 'stage-0.accelerator0' is not on"),
        (move_copy, "is not on the node of 'stage-1' [stage-nodes]"),
        (third_node, "$.resources.nodes: 3 nodes, expected one, or one for each of 2 stages"),
        (drop_check, "lacks 'stages.machines'"),
    ],
)
def test_a_stage_on_another_node_is_named(
    plan: LoadedPlan, change: Callable[[dict[str, Any]], None], named: str
) -> None:
    assert any(named in finding for finding in findings(plan, change))


@pytest.mark.parametrize("nodes", [1, 3, "true", 0])
def test_there_are_as_many_nodes_as_stages(
    staged_plan: Callable[..., LoadedPlan], nodes: Any
) -> None:
    with pytest.raises(InvalidInputError, match="settings do not fit") as refused:
        staged_plan("tiny_llama", 2, f"realization.nodes={nodes}")
    assert "realization.nodes" in str(refused.value)


def test_several_machines_are_one_environment(plan: LoadedPlan, machine: Environment) -> None:
    both = joined({"stage-0": machine, "stage-1": machine})
    assert [node.id for node in both.resources.nodes] == ["stage-0.node0", "stage-1.node0"]
    assert facts_of(both, "stage-1") == dict(machine.facts)
    assert facts_of(both, "stage-2") == {}
    binding = bind(plan.plan.resources, both)
    assert list(misplaced(plan.plan, binding)) == []
    # Each machine by itself comes to the same binding of its own part.
    for view in stage_views(plan.plan, None, None):
        own = bind(view.plan.resources, machine)
        for there, here in (
            (binding.compute_units, own.compute_units),
            (binding.memories, own.memories),
        ):
            named = {name: f"{view.stage.id}.{bound}" for name, bound in here.items()}
            assert {name: there[name] for name in here} == named
    with pytest.raises(ResourceError, match="does not meet"):
        bind(plan.plan.resources, joined({"stage-0": machine}))


def test_a_binding_to_another_stages_machine_is_found(
    plan: LoadedPlan, machine: Environment
) -> None:
    """The first machine is too small for its stage, and the second large enough for it."""
    small = probe_environment(replace(DEVICE, simulated_vram_bytes=1 << 20))
    document = copy.deepcopy(plan.document)
    (memory,) = [
        each
        for each in document["resources"]["nodes"][1]["memory_resources"]
        if each["kind"] == "simulated-vram"
    ]
    memory["capacity_bytes"] = 1 << 20
    crossed = plan_from_document(document)
    both = joined({"stage-0": small, "stage-1": machine})
    binding = bind(crossed.resources, both)
    assert list(misplaced(crossed, binding)) == [
        ("stage-0.accelerator0", "stage-1.accelerator0"),
        ("stage-1.accelerator0", "stage-0.accelerator0"),
    ]

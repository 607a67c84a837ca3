"""The rules of stages on machines of their own: one node for each, and nothing of it on another."""

from collections.abc import Iterator

from harness.plan.nodes import has_nodes
from harness.plan.records import Finding, Plan

NODES = "stage-nodes"


def node_rules(plan: Plan) -> Iterator[Finding]:
    """Each stage computes and keeps everything on its own node, where there are several."""
    if not has_nodes(plan):
        return
    stages, nodes = plan.stages or (), plan.resources.nodes
    if len(nodes) != len(stages):
        message = f"{len(nodes)} nodes, expected one, or one for each of {len(stages)} stages"
        yield Finding(path="$.resources.nodes", rule=NODES, message=message)
        return
    own_memories: dict[str, set[str]] = {}
    for index, (stage, node) in enumerate(zip(stages, nodes, strict=True)):
        own_memories[stage.id] = {memory.id for memory in node.memory_resources}
        if stage.compute_unit_id not in {unit.id for unit in node.compute_units}:
            message = f"{stage.compute_unit_id!r} is not on {node.id!r}, the stage's node"
            yield Finding(path=f"$.stages[{index}].compute_unit_id", rule=NODES, message=message)
    for index, item in enumerate(plan.materializations):
        if item.memory_resource_id not in own_memories.get(item.stage_id or "", set()):
            path = f"$.materializations[{index}].memory_resource_id"
            message = f"{item.memory_resource_id!r} is not on the node of {item.stage_id!r}"
            yield Finding(path=path, rule=NODES, message=message)

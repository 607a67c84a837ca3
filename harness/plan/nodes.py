"""Stages on machines of their own: resources of several nodes under names that tell them apart.

Where each stage has a node, everything on it is named after the stage: ``stage-1.accelerator0``. A
plan and an environment of several machines are made, and compared, by the same rule. Measures
nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.plan.binding import Binding
from harness.plan.environment import Environment, Fact
from harness.plan.records import Plan, Resources


def has_nodes(plan: Plan) -> bool:
    """Whether each stage of a plan has a node of its own, and so a machine."""
    return plan.stages is not None and len(plan.resources.nodes) > 1


def on_node(prefix: str, identifier: str) -> str:
    """How something on a stage's node is named."""
    return f"{prefix}.{identifier}"


def prefixed(resources: Resources, prefix: str) -> Resources:
    """The same resources, named after a stage."""
    return replace(
        resources,
        nodes=tuple(
            replace(
                node,
                id=on_node(prefix, node.id),
                compute_units=tuple(
                    replace(
                        unit,
                        id=on_node(prefix, unit.id),
                        memory_resources=tuple(
                            on_node(prefix, name) for name in unit.memory_resources
                        ),
                    )
                    for unit in node.compute_units
                ),
                memory_resources=tuple(
                    replace(memory, id=on_node(prefix, memory.id))
                    for memory in node.memory_resources
                ),
            )
            for node in resources.nodes
        ),
    )


def joined(environments: Mapping[str, Environment]) -> Environment:
    """What several machines have, as one environment.

    Args:
        environments: As each machine observed its own, by stage, in order.
    """
    parts = [prefixed(one.resources, stage_id) for stage_id, one in environments.items()]
    return Environment(
        resources=replace(parts[0], nodes=tuple(node for part in parts for node in part.nodes)),
        facts={
            on_node(stage_id, name): fact
            for stage_id, one in environments.items()
            for name, fact in one.facts.items()
        },
    )


def facts_of(environment: Environment, stage_id: str) -> dict[str, Fact]:
    """What a joined environment says of one stage's machine, by plain names."""
    begin = on_node(stage_id, "")
    return {
        name.removeprefix(begin): fact
        for name, fact in environment.facts.items()
        if name.startswith(begin)
    }


def fact_text(fact: Fact) -> str | None:
    """A fact about a machine as a process writes it down: booleans as JSON has them."""
    if fact is None:
        return None
    return str(fact).lower() if isinstance(fact, bool) else str(fact)


def misplaced(plan: Plan, binding: Binding) -> Iterator[tuple[str, str]]:
    """Compute units of stages that are bound to another stage's machine: (unit, bound to).

    A stage runs where it was started: no binding can choose another machine for it.
    """
    for stage in plan.stages or ():
        bound = binding.compute_units.get(stage.compute_unit_id)
        if bound is not None and not bound.startswith(on_node(stage.id, "")):
            yield stage.compute_unit_id, bound

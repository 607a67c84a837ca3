"""Rules 2 and 5: the resources of the plan exist in an environment.

A native plan asks for kinds, capacities and pinned UUIDs, and is bound. A published plan names
its machine outright: the same ids, kinds, capacities and UUIDs must be there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TypeVar

from harness.errors import ResourceError
from harness.plan.bind import RULE as ENVIRONMENT
from harness.plan.bind import bind, unmet
from harness.plan.records import (
    BackingSource,
    ComputeUnit,
    Finding,
    MemoryResource,
    Node,
    Resources,
)
from harness.plan.rules.context import RuleContext, repeated

SWARM = "rule-02-swarm"
_Item = TypeVar("_Item", Node, ComputeUnit, MemoryResource, BackingSource)


def machine_rules(context: RuleContext) -> Iterator[Finding]:
    """Compare the plan's resources with the environment, when one was given."""
    if context.environment is None:
        return
    wanted, there = context.plan.resources, context.environment.resources
    if wanted.swarm_id != there.swarm_id:
        message = f"plan is for swarm {wanted.swarm_id!r}, the environment is {there.swarm_id!r}"
        yield Finding(path="$.resources.swarm_id", rule=SWARM, message=message)
    if context.is_native:
        yield from _bindable(context)
    else:
        yield from _same_machine(wanted, there)


def _bindable(context: RuleContext) -> Iterator[Finding]:
    assert context.environment is not None
    wanted = context.plan.resources
    ids = [unit.id for node in wanted.nodes for unit in node.compute_units]
    names = [memory.id for node in wanted.nodes for memory in node.memory_resources]
    if repeated(ids) or repeated(names) or repeated(node.id for node in wanted.nodes):
        return  # rules 3 and 4 say so; a binding of ambiguous ids means nothing
    problems = unmet(wanted, context.environment)
    yield from problems
    if not problems:
        try:
            bind(wanted, context.environment)
        except ResourceError as error:
            message = " ".join((error.got or error.problem).split())
            yield Finding(path="$.resources.nodes", rule=ENVIRONMENT, message=message)


def _same_machine(wanted: Resources, there: Resources) -> Iterator[Finding]:
    yield from _same_items("$.resources.nodes", wanted.nodes, there.nodes)
    yield from _same_items(
        "$.resources.backing_sources", wanted.backing_sources, there.backing_sources
    )


def _same_items(path: str, wanted: Sequence[_Item], there: Sequence[_Item]) -> Iterator[Finding]:
    """Each planned item exists under its id with equal fields, and so do its own items."""
    found = {item.id: item for item in there}
    for index, item in enumerate(wanted):
        where = f"{path}[{index}]"
        real = found.get(item.id)
        if real is None:
            message = f"{item.id!r} does not exist there"
            yield Finding(path=f"{where}.id", rule=ENVIRONMENT, message=message)
            continue
        for name in (field.name for field in fields(item)):
            planned, actual = getattr(item, name), getattr(real, name)
            if isinstance(item, Node) and name != "id":
                yield from _same_items(f"{where}.{name}", planned, actual)
            elif planned != actual:
                message = f"planned {planned!r}, the environment has {actual!r}"
                yield Finding(path=f"{where}.{name}", rule=ENVIRONMENT, message=message)

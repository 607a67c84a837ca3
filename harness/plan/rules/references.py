"""Rules 6 and 7, links and paths: whatever is named exists, and bytes can get where they go."""

from collections.abc import Iterator

from harness.plan.records import PROCESS_BOUNDARY, TOKEN_RETURN, Finding, Link
from harness.plan.rules.context import RuleContext

BACKING = "rule-06-backing-source"
REFERENCES = "rule-07-references"
LINKS = "links"
PATHS = "paths"


def reference_rules(context: RuleContext) -> Iterator[Finding]:
    """Every reference resolves; every path ends in the memory it serves."""
    yield from _backing(context)
    yield from _unit_memories(context)
    yield from _links(context)
    yield from _materializations(context)
    for index, forbidden in enumerate(context.plan.forbidden_persistent_materializations):
        path = f"$.forbidden_persistent_materializations[{index}]"
        yield from _known(path, "logical_state_id", forbidden.logical_state_id, context.states)
        yield from _known(
            path, "memory_resource_id", forbidden.memory_resource_id, context.memories
        )


def _known(path: str, field: str, name: str, known: object) -> Iterator[Finding]:
    assert isinstance(known, dict)
    if name not in known:
        message = f"{name!r} does not exist in the plan"
        yield Finding(path=f"{path}.{field}", rule=REFERENCES, message=message)


def _backing(context: RuleContext) -> Iterator[Finding]:
    for index, state in enumerate(context.plan.logical_state_units):
        path = f"$.logical_state_units[{index}].backing_source_id"
        name = state.backing_source_id
        if name is None and state.semantic_class == "immutable_source":
            message = f"immutable state {state.id!r} has no backing source"
            yield Finding(path=path, rule=BACKING, message=message)
        if name is not None and name not in context.backing_sources:
            message = f"backing source {name!r} does not exist in the plan"
            yield Finding(path=path, rule=BACKING, message=message)


def _unit_memories(context: RuleContext) -> Iterator[Finding]:
    for i, node in enumerate(context.plan.resources.nodes):
        own = {memory.id for memory in node.memory_resources}
        for j, unit in enumerate(node.compute_units):
            for k, name in enumerate(unit.memory_resources):
                if name not in own:
                    yield Finding(
                        path=f"$.resources.nodes[{i}].compute_units[{j}].memory_resources[{k}]",
                        rule=REFERENCES,
                        message=f"memory {name!r} does not exist in the unit's node",
                    )


def _links(context: RuleContext) -> Iterator[Finding]:
    for index, link in enumerate(context.plan.resources.links):
        path = f"$.resources.links[{index}]"
        if link.kind in (PROCESS_BOUNDARY, TOKEN_RETURN):
            continue  # the rules of stages say where these go
        from_source = link.kind == "bounded-read"
        sources = context.backing_sources if from_source else context.memories
        if link.source not in sources:
            what = "backing source" if from_source else "memory"
            message = f"{link.source!r} is no {what} of the plan, as {link.kind} needs"
            yield Finding(path=f"{path}.source", rule=LINKS, message=message)
        elif not from_source and context.memories[link.source].kind != "system-ram":
            message = f"{link.source!r} is no system memory, as {link.kind} needs"
            yield Finding(path=f"{path}.source", rule=LINKS, message=message)
        if link.target not in context.memories:
            message = f"{link.target!r} is no memory of the plan"
            yield Finding(path=f"{path}.target", rule=LINKS, message=message)
        elif link.source == link.target:
            message = f"{link.id!r} ends where it starts"
            yield Finding(path=f"{path}.target", rule=LINKS, message=message)


def _materializations(context: RuleContext) -> Iterator[Finding]:
    for index, item in enumerate(context.plan.materializations):
        path = f"$.materializations[{index}]"
        yield from _known(path, "logical_state_id", item.logical_state_id, context.states)
        yield from _known(path, "memory_resource_id", item.memory_resource_id, context.memories)
        if item.path_id is None:
            state = context.states.get(item.logical_state_id)
            if state is not None and state.semantic_class == "immutable_source":
                message = f"{item.id!r} holds source bytes, but no path brings them"
                yield Finding(path=f"{path}.path_id", rule=PATHS, message=message)
            continue
        yield from _known(path, "path_id", item.path_id, context.links)
        link = context.links.get(item.path_id)
        if link is not None:
            yield from _path_fits(context, f"{path}.path_id", link, index)


def _path_fits(context: RuleContext, path: str, link: Link, index: int) -> Iterator[Finding]:
    item = context.plan.materializations[index]
    if link.target != item.memory_resource_id:
        message = f"path {link.id!r} ends in {link.target!r}, not in {item.memory_resource_id!r}"
        yield Finding(path=path, rule=PATHS, message=message)
    state = context.states.get(item.logical_state_id)
    if (
        state is not None
        and link.kind == "bounded-read"
        and state.backing_source_id is not None
        and link.source != state.backing_source_id
    ):
        message = f"path {link.id!r} reads {link.source!r}, not {state.backing_source_id!r}"
        yield Finding(path=path, rule=PATHS, message=message)

"""Reconstruction: what derived state is made from exists, and nothing is made from itself."""

from collections.abc import Iterator

from harness.plan.records import Finding
from harness.plan.rules.context import RuleContext

RECONSTRUCTION = "reconstruction"
COVERAGE = "state-coverage"


def state_rules(context: RuleContext) -> Iterator[Finding]:
    """Reconstruction inputs exist, without cycles; every state has a planned copy."""
    yield from _inputs(context)
    yield from _cycles(context)
    covered = {item.logical_state_id for item in context.plan.materializations}
    for index, state in enumerate(context.plan.logical_state_units):
        if state.id not in covered:
            message = f"state {state.id!r} has no materialization"
            yield Finding(path=f"$.logical_state_units[{index}].id", rule=COVERAGE, message=message)


def _inputs(context: RuleContext) -> Iterator[Finding]:
    for index, state in enumerate(context.plan.logical_state_units):
        path = f"$.logical_state_units[{index}].reconstruction_inputs"
        inputs = state.reconstruction_inputs
        if state.semantic_class == "derived_reconstructible":
            if inputs is None:
                message = f"derived state {state.id!r} does not say what it is made from"
                yield Finding(path=path, rule=RECONSTRUCTION, message=message)
        elif inputs is not None:
            message = f"{state.semantic_class} state {state.id!r} is not made from anything"
            yield Finding(path=path, rule=RECONSTRUCTION, message=message)
        for j, name in enumerate(inputs or ()):
            if name not in context.states and name not in context.backing_sources:
                message = f"{name!r} is no state and no backing source of the plan"
                yield Finding(path=f"{path}[{j}]", rule=RECONSTRUCTION, message=message)


def _cycles(context: RuleContext) -> Iterator[Finding]:
    # States are taken away once all their inputs are; what is left lies on or behind a cycle.
    waiting: dict[str, set[str]] = {}
    for state in context.plan.logical_state_units:
        inputs = {name for name in state.reconstruction_inputs or () if name in context.states}
        if inputs:
            waiting[state.id] = inputs
        else:
            waiting.pop(state.id, None)
    users: dict[str, list[str]] = {}
    for name, inputs in waiting.items():
        for each in inputs:
            users.setdefault(each, []).append(name)
    ready = [name for name in users if name not in waiting]
    while ready:
        done = ready.pop()
        for user in users.get(done, ()):
            waiting[user].discard(done)
            if not waiting[user]:
                del waiting[user]
                ready.append(user)
    for index, state in enumerate(context.plan.logical_state_units):
        if state.id in waiting:
            message = f"state {state.id!r} is made, in the end, from itself or from a cycle"
            yield Finding(
                path=f"$.logical_state_units[{index}].reconstruction_inputs",
                rule=RECONSTRUCTION,
                message=message,
            )

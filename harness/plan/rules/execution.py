"""Rules 15 to 17: an execution has its unit, its state within reach, and an adapter for it."""

from collections.abc import Iterator

from harness.plan.records import Execution, Finding
from harness.plan.rules.context import RuleContext, duplicate_findings

UNIT = "rule-15-execution-unit"
REQUIRED_STATE = "rule-16-required-state"
STRATEGY = "rule-17-strategy"


def execution_rules(context: RuleContext) -> Iterator[Finding]:
    """Each execution's unit exists, its state is resident, and the adapter can run it."""
    for index, execution in enumerate(context.plan.execution):
        path = f"$.execution[{index}]"
        if execution.compute_unit_id not in context.units:
            message = f"compute unit {execution.compute_unit_id!r} does not exist in the plan"
            yield Finding(path=f"{path}.compute_unit_id", rule=UNIT, message=message)
        yield from _required_state(context, path, execution)
        support = context.support
        if support is not None and execution.strategy_unit not in support.strategy_units:
            message = (
                f"the adapter cannot run {execution.strategy_unit!r}; it runs "
                f"{', '.join(sorted(support.strategy_units))}"
            )
            yield Finding(path=f"{path}.strategy_unit", rule=STRATEGY, message=message)


def _required_state(context: RuleContext, path: str, execution: Execution) -> Iterator[Finding]:
    unit = context.units.get(execution.compute_unit_id)
    yield from duplicate_findings(
        f"{path}.required_state",
        REQUIRED_STATE,
        (item.logical_state_id for item in execution.required_state),
        ".logical_state_id",
    )
    for index, required in enumerate(execution.required_state):
        where = f"{path}.required_state[{index}]"
        if required.logical_state_id not in context.states:
            message = f"state {required.logical_state_id!r} does not exist in the plan"
            yield Finding(path=f"{where}.logical_state_id", rule=REQUIRED_STATE, message=message)
            continue
        for j, name in enumerate(required.memory_resources):
            if name not in context.memories:
                message = f"memory {name!r} does not exist in the plan"
            elif unit is not None and name not in unit.memory_resources:
                message = f"unit {unit.id!r} does not reach memory {name!r}"
            else:
                continue
            yield Finding(
                path=f"{where}.memory_resources[{j}]", rule=REQUIRED_STATE, message=message
            )
        if not any(
            item.representation in required.representations
            and item.memory_resource_id in required.memory_resources
            for item in context.residencies.get(required.logical_state_id, ())
        ):
            message = (
                f"no required persistent materialization of {required.logical_state_id!r} in an "
                "allowed representation and memory"
            )
            yield Finding(path=where, rule=REQUIRED_STATE, message=message)

"""Rule 12 and more: planned bytes fit each memory, at the end and at the peak."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from harness.plan.records import Finding, Materialization
from harness.plan.rules.context import RuleContext

CAPACITY = "rule-12-capacity"
PEAK = "transient-peak"
EXPECTATIONS = "memory-expectations"


def memory_rules(context: RuleContext) -> Iterator[Finding]:
    """Compare sums per memory with capacity, and the expectations with what a plan can hold."""
    items = context.plan.materializations
    realized = [item for item in items if context.is_realized(item)]
    persistent = bytes_by_memory(
        item
        for item in items
        if item.requirement == "required" and item.persistence == "persistent"
    )
    # All staging lives until every residency is realized, so the peak is the sum of both.
    peak = bytes_by_memory(realized)
    for i, node in enumerate(context.plan.resources.nodes):
        for j, memory in enumerate(node.memory_resources):
            path = f"$.resources.nodes[{i}].memory_resources[{j}].capacity_bytes"
            for rule, what, needed in (
                (CAPACITY, "required persistent bytes", persistent[memory.id]),
                (PEAK, "bytes at the peak (staging and persistent)", peak[memory.id]),
            ):
                if needed > memory.capacity_bytes:
                    message = f"{needed} {what} do not fit {memory.id!r} of {memory.capacity_bytes}"
                    yield Finding(path=path, rule=rule, message=message)
    yield from _expectations(context, realized)


def _expectations(context: RuleContext, realized: Sequence[Materialization]) -> Iterator[Finding]:
    optional = sum(
        item.expected_bytes
        for item in realized
        if item.requirement == "optional" and item.persistence == "persistent"
    )
    expected = context.plan.memory_expectations.persistent_optional_bytes
    if optional != expected:
        yield Finding(
            path="$.memory_expectations.persistent_optional_bytes",
            rule=EXPECTATIONS,
            message=f"expects {expected}, the realized optional materializations have {optional}",
        )
    if not context.is_native:
        return
    # What may stay is the allowance; an audit has no other figure to hold a run to.
    for name in ("unplanned_persistent_bytes", "unexplained_persistent_host_mirror_bytes"):
        got = getattr(context.plan.memory_expectations, name)
        if got != 0:
            message = f"must be 0 (within the allowance), is {got}"
            yield Finding(path=f"$.memory_expectations.{name}", rule=EXPECTATIONS, message=message)


def bytes_by_memory(items: Iterable[Materialization]) -> defaultdict[str, int]:
    """Sum of expected bytes per memory id."""
    sums: defaultdict[str, int] = defaultdict(int)
    for item in items:
        sums[item.memory_resource_id] += item.expected_bytes
    return sums

"""Rules 1, 3 and 4 and tensor keys: the plan names one model, and every name names one thing.

The digest of rule 1 is recomputed when a plan is read (``load``).
"""

from collections.abc import Iterator

from harness.plan.records import Finding
from harness.plan.rules.context import RuleContext, duplicate_findings

IDENTITY = "rule-01-identity"
UNIQUE_IDS = "rule-03-unique-ids"
UNIQUE_RESOURCES = "rule-04-unique-resources"
TENSOR_KEYS = "tensor-keys"


def identity_rules(context: RuleContext) -> Iterator[Finding]:
    """One model revision throughout; unique ids; unique tensor keys."""
    yield from _one_model(context)
    yield from _unique_ids(context)
    yield from _unique_resources(context)
    yield from _tensor_keys(context)


def _one_model(context: RuleContext) -> Iterator[Finding]:
    plan = context.plan
    spec = plan.adapter_data.spec
    named = [
        ("$.adapter_data.spec.model_repository", spec.model_repository, plan.model_repository),
        ("$.adapter_data.spec.revision", spec.revision, plan.model_revision),
    ]
    for index, source in enumerate(plan.resources.backing_sources):
        path = f"$.resources.backing_sources[{index}]"
        named.append((f"{path}.repository", source.repository, plan.model_repository))
        named.append((f"{path}.revision", source.revision, plan.model_revision))
    for path, got, expected in named:
        if got != expected:
            message = f"{got!r} is not the plan's model, {expected!r}"
            yield Finding(path=path, rule=IDENTITY, message=message)
    if spec.start_layer >= spec.end_layer:
        message = f"layers [{spec.start_layer}, {spec.end_layer}) are none"
        yield Finding(path="$.adapter_data.spec.end_layer", rule=IDENTITY, message=message)


def _unique_ids(context: RuleContext) -> Iterator[Finding]:
    plan = context.plan
    for path, ids in (
        ("$.resources.nodes", [node.id for node in plan.resources.nodes]),
        ("$.resources.backing_sources", [item.id for item in plan.resources.backing_sources]),
        ("$.resources.links", [link.id for link in plan.resources.links]),
        ("$.logical_state_units", [state.id for state in plan.logical_state_units]),
        ("$.materializations", [item.id for item in plan.materializations]),
        ("$.execution", [item.id for item in plan.execution]),
    ):
        yield from duplicate_findings(path, UNIQUE_IDS, ids, ".id")


def _unique_resources(context: RuleContext) -> Iterator[Finding]:
    """Ids are unique over all nodes, so each occurrence after the first is listed at its place."""
    seen: set[tuple[str, str]] = set()
    for i, node in enumerate(context.plan.resources.nodes):
        listed = [("compute_units", unit.id, j) for j, unit in enumerate(node.compute_units)]
        listed += [("memory_resources", item.id, j) for j, item in enumerate(node.memory_resources)]
        for field, name, j in listed:
            if (field, name) in seen:
                path = f"$.resources.nodes[{i}].{field}[{j}].id"
                yield Finding(path=path, rule=UNIQUE_RESOURCES, message=f"duplicate {name!r}")
            seen.add((field, name))
        for j, unit in enumerate(node.compute_units):
            path = f"$.resources.nodes[{i}].compute_units[{j}].memory_resources"
            yield from duplicate_findings(path, UNIQUE_RESOURCES, unit.memory_resources, "")


def _tensor_keys(context: RuleContext) -> Iterator[Finding]:
    keys = context.plan.adapter_data.allowed_tensor_keys
    path = "$.adapter_data.allowed_tensor_keys"
    yield from duplicate_findings(path, TENSOR_KEYS, keys, "")
    if context.is_native:
        for index in range(1, len(keys)):
            if keys[index] < keys[index - 1]:
                message = f"{keys[index]!r} is not sorted"
                yield Finding(path=f"{path}[{index}]", rule=TENSOR_KEYS, message=message)

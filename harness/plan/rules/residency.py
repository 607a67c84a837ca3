"""Rules 8 to 11: what kind of copy may be where, and for how long."""

from collections.abc import Iterator

from harness.plan.layout import CHECKPOINT_WINDOW
from harness.plan.records import Finding
from harness.plan.rules.context import RuleContext

REPRESENTATION = "rule-08-representation"
STAGING = "rule-09-staging"
MUTABLE = "rule-10-mutable-authority"
FORBIDDEN = "rule-11-forbidden-copy"
ROLES = "roles"


def residency_rules(context: RuleContext) -> Iterator[Finding]:
    """Representations, staging, mutable authority, forbidden copies, and roles."""
    yield from _representations(context)
    for index, _ in enumerate(context.plan.materializations):
        yield from _staging(context, index)
        yield from _mutable(context, index)
        yield from _roles(context, index)
    yield from _forbidden(context)
    yield from _window(context)


def _representations(context: RuleContext) -> Iterator[Finding]:
    if context.support is None:
        return
    for index, item in enumerate(context.plan.materializations):
        if not context.support.supports_representation(item.logical_state_id, item.representation):
            yield Finding(
                path=f"$.materializations[{index}].representation",
                rule=REPRESENTATION,
                message=f"the adapter cannot realize {item.logical_state_id!r} "
                f"as {item.representation!r}",
            )


def _staging(context: RuleContext, index: int) -> Iterator[Finding]:
    item = context.plan.materializations[index]
    path = f"$.materializations[{index}].persistence"
    if item.role == "staging" and item.persistence != "transient":
        message = f"staging {item.id!r} must be transient"
        yield Finding(path=path, rule=STAGING, message=message)
    if item.role != "staging" and item.persistence == "transient":
        message = f"only staging is transient, {item.id!r} is {item.role}"
        yield Finding(path=path, rule=STAGING, message=message)
    if item.role == "staging" and item.logical_state_id not in context.residencies:
        message = f"nothing can release staging {item.id!r}: no required persistent copy follows"
        yield Finding(path=f"$.materializations[{index}].role", rule=STAGING, message=message)


def _mutable(context: RuleContext, index: int) -> Iterator[Finding]:
    item = context.plan.materializations[index]
    state = context.states.get(item.logical_state_id)
    if item.role != "mutable_authority":
        return
    if state is not None and state.semantic_class != "mutable_authoritative":
        message = f"{item.id!r} claims authority over {state.semantic_class} state {state.id!r}"
        yield Finding(path=f"$.materializations[{index}].role", rule=MUTABLE, message=message)
    if item.requirement != "required":
        message = f"mutable authority {item.id!r} must be required"
        yield Finding(
            path=f"$.materializations[{index}].requirement", rule=MUTABLE, message=message
        )


def _roles(context: RuleContext, index: int) -> Iterator[Finding]:
    item = context.plan.materializations[index]
    path = f"$.materializations[{index}]"
    if item.role == "optional_cache" and item.requirement != "optional":
        message = f"{item.id!r} is an optional cache and required"
        yield Finding(path=f"{path}.requirement", rule=ROLES, message=message)
    if item.realize is not None and item.requirement == "required":
        message = f"{item.id!r} is required; realize is for optional materializations"
        yield Finding(path=f"{path}.realize", rule=ROLES, message=message)


def _forbidden(context: RuleContext) -> Iterator[Finding]:
    forbidden = {
        (item.logical_state_id, item.memory_resource_id)
        for item in context.plan.forbidden_persistent_materializations
    }
    for index, item in enumerate(context.plan.materializations):
        place = (item.logical_state_id, item.memory_resource_id)
        if item.persistence == "persistent" and place in forbidden:
            yield Finding(
                path=f"$.materializations[{index}].memory_resource_id",
                rule=FORBIDDEN,
                message=f"{item.id!r} is a forbidden persistent copy of {place[0]!r} "
                f"in {place[1]!r}",
            )


def _window(context: RuleContext) -> Iterator[Finding]:
    allowances = context.plan.memory_allowances
    if allowances is None:
        return
    bound = allowances.staging_window_bytes
    windows = [
        (index, item)
        for index, item in enumerate(context.plan.materializations)
        if item.representation == CHECKPOINT_WINDOW
    ]
    for index, item in windows:
        if item.expected_bytes != bound:
            message = f"window {item.id!r} has {item.expected_bytes} bytes, the bound is {bound}"
            yield Finding(
                path=f"$.materializations[{index}].expected_bytes", rule=STAGING, message=message
            )
    if bound is not None and not windows:
        yield Finding(
            path="$.memory_allowances.staging_window_bytes",
            rule=STAGING,
            message="a window is bounded, but no materialization is one",
        )

"""Rules 13 and 14: exactly one owner, and one lineage, for each state that changes."""

from collections import Counter
from collections.abc import Iterator

from harness.plan.records import Authority, Finding
from harness.plan.rules.context import RuleContext, duplicate_findings

REFERENCES = "rule-13-authority-references"
LINEAGE = "rule-14-one-lineage"
OWNER = "authority-state"


def planned_lineage(logical_state_id: str) -> str:
    """The lineage that a state's first owner mints, as a native plan predicts it."""
    return f"{logical_state_id}@epoch-1"


def authority_rules(context: RuleContext) -> Iterator[Finding]:
    """Authorities resolve, hold the very state they own, and are one per mutable state."""
    authorities = context.plan.authorities
    for index, authority in enumerate(authorities):
        yield from _resolves(context, f"$.authorities[{index}]", authority)
    # Each stage owns its own layers' part of a state: one owner is a rule for each of them.
    is_whole = context.plan.stages is None
    if is_whole:
        yield from duplicate_findings(
            "$.authorities", LINEAGE, (item.lineage for item in authorities), ".lineage"
        )
    owners = Counter(item.logical_state_id for item in authorities)
    for index, state in enumerate(context.plan.logical_state_units if is_whole else ()):
        wanted = 1 if state.semantic_class == "mutable_authoritative" else 0
        if owners[state.id] != wanted:
            message = (
                f"{state.semantic_class} state {state.id!r} has {owners[state.id]} lineages, "
                f"expected {wanted}"
            )
            yield Finding(path=f"$.logical_state_units[{index}].id", rule=LINEAGE, message=message)
    named = {item.materialization_id for item in authorities}
    for index, item in enumerate(context.plan.materializations):
        if item.role == "mutable_authority" and item.id not in named:
            message = f"no authority names the mutable authority {item.id!r}"
            yield Finding(path=f"$.materializations[{index}].role", rule=OWNER, message=message)


def _resolves(context: RuleContext, path: str, authority: Authority) -> Iterator[Finding]:
    if authority.logical_state_id not in context.states:
        message = f"state {authority.logical_state_id!r} does not exist in the plan"
        yield Finding(path=f"{path}.logical_state_id", rule=REFERENCES, message=message)
    item = context.materializations.get(authority.materialization_id)
    if item is None:
        message = f"materialization {authority.materialization_id!r} does not exist in the plan"
        yield Finding(path=f"{path}.materialization_id", rule=REFERENCES, message=message)
        return
    if item.logical_state_id != authority.logical_state_id:
        message = f"{item.id!r} holds {item.logical_state_id!r}, not {authority.logical_state_id!r}"
        yield Finding(path=f"{path}.materialization_id", rule=OWNER, message=message)
    if item.role != "mutable_authority":
        message = f"{item.id!r} has role {item.role}, not mutable_authority"
        yield Finding(path=f"{path}.materialization_id", rule=OWNER, message=message)
    expected = planned_lineage(authority.logical_state_id)
    if context.is_native and authority.lineage != expected:
        message = f"lineage {authority.lineage!r} is not what the owner mints, {expected!r}"
        yield Finding(path=f"{path}.lineage", rule=LINEAGE, message=message)

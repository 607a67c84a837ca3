"""The rules a plan must keep, one family of rules a file; ``RULES`` is all of them, in order."""

from collections.abc import Callable, Iterator

from harness.plan.records import Finding
from harness.plan.rules.authority import authority_rules
from harness.plan.rules.checkpoint import checkpoint_rules
from harness.plan.rules.context import RuleContext
from harness.plan.rules.designs import copy_rules
from harness.plan.rules.execution import execution_rules
from harness.plan.rules.identity import identity_rules
from harness.plan.rules.machine import machine_rules
from harness.plan.rules.memory import memory_rules
from harness.plan.rules.references import reference_rules
from harness.plan.rules.residency import residency_rules
from harness.plan.rules.stages import stage_rules
from harness.plan.rules.states import state_rules
from harness.plan.rules.workload import workload_rules

RULES: tuple[Callable[[RuleContext], Iterator[Finding]], ...] = (
    identity_rules,
    machine_rules,
    reference_rules,
    state_rules,
    residency_rules,
    memory_rules,
    authority_rules,
    execution_rules,
    checkpoint_rules,
    copy_rules,
    workload_rules,
    stage_rules,
)

"""Every check of an audit, by the id under which a plan declares it."""

from collections.abc import Callable, Mapping

from harness.plan.checks import NODE_CHECKS, STAGE_CHECKS
from harness.reconcile.checks import (
    conditions,
    device,
    integrity,
    ledger,
    machines,
    memory,
    ownership,
    realization,
    sentinels,
    stages,
    state,
    steps,
    summaries,
    telemetry,
    tensors,
)
from harness.reconcile.findings import Findings
from harness.reconcile.view import Subject

Check = Callable[[Subject, Findings], None]

CHECKS: Mapping[str, Check] = {
    "integrity.tables": integrity.tables,
    "integrity.source": integrity.source,
    "trials.completed": conditions.trials,
    "plan.binding": conditions.binding,
    "realization.materializations": realization.materializations,
    "realization.authorities": realization.authorities,
    "realization.executions": realization.executions,
    "realization.release": realization.release,
    "tensors.expected": tensors.expected,
    "tensors.unchanged": tensors.unchanged,
    "memory.unplanned": memory.unplanned,
    "memory.ledger": ledger.ledger,
    "memory.invariants": memory.invariants,
    "memory.release": memory.released,
    "memory.device": device.device,
    "steps.complete": steps.complete,
    "steps.repeat": steps.repeat,
    "state.selfproof": state.selfproof,
    "state.ownership": ownership.ownership,
    "correctness.exact": steps.exact,
    "numbers.finite": steps.finite,
    "sentinels.canaries": sentinels.canaries,
    "sentinels.zero": sentinels.zero,
    "summaries.agree": summaries.agree,
    "result.digest": summaries.result_digest,
    "stages.complete": stages.complete,
    "stages.crossings": stages.crossings,
    "stages.tokens": stages.tokens,
    "stages.shared_state": stages.shared_state,
    "stages.machines": machines.machines,
    "step.times": telemetry.step_times,
    "memory.resident": telemetry.resident,
}

WHOLE = frozenset(
    {
        "integrity.tables",
        "trials.completed",
        "plan.binding",
        "summaries.agree",
        "result.digest",
        *STAGE_CHECKS,
        *NODE_CHECKS,
    }
)
"""Checks of a record as one, also where its plan has stages; the others are of each stage's."""

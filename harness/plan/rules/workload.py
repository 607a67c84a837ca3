"""Sanity of what is executed and judged: it fits, it can be compared, and no check is left out."""

from collections.abc import Iterator

from harness.plan.checks import (
    ACCEPTANCE,
    DEVICE_CHECKS,
    LIMITED,
    NODE_CHECKS,
    STAGE_CHECKS,
    STATE_CHECKS,
    TELEMETRY,
    UNPLANNED_BYTES,
    device_checks,
    stage_checks,
)
from harness.plan.limits import limit_faults
from harness.plan.nodes import has_nodes
from harness.plan.partition import partition_faults
from harness.plan.recipe import FIXTURE_LOADER, fixture_outputs
from harness.plan.records import CheckLimit, Checks, Finding, ModelRange, Workload
from harness.plan.rules.context import RuleContext

WORKLOAD = "workload"
FIXTURE = "reference-fixture"
CHECKS = "checks"
_SOME_PLANS = {**STATE_CHECKS, **DEVICE_CHECKS, **STAGE_CHECKS, **NODE_CHECKS}
MAX_REALIZATIONS = 10
"""More processes than this leave more tables than one record's statement can name."""


def workload_rules(context: RuleContext) -> Iterator[Finding]:
    """Workload, reference fixture and checks (native plans only)."""
    if context.plan.workload is not None:
        yield from _workload(context.plan.workload)
        yield from _decode_tokens(context.plan.workload, context.plan.adapter_data.spec)
    yield from _fixture(context)
    if context.plan.checks is not None:
        yield from _checks(context, context.plan.checks)


def _workload(workload: Workload) -> Iterator[Finding]:
    # The first decode step feeds the token that prefill chose: one position per step.
    needed = len(workload.prompt_token_ids) + workload.decode_steps
    if needed > workload.max_positions:
        message = (
            f"prompt of {len(workload.prompt_token_ids)} tokens and {workload.decode_steps} "
            f"decode steps need {needed} positions, there are {workload.max_positions}"
        )
        yield Finding(path="$.workload.max_positions", rule=WORKLOAD, message=message)
    if workload.fresh_realizations > MAX_REALIZATIONS:
        message = (
            f"{workload.fresh_realizations} fresh realizations are more than one record can hold, "
            f"{MAX_REALIZATIONS}; make several records of one plan"
        )
        yield Finding(path="$.workload.fresh_realizations", rule=WORKLOAD, message=message)
    for index, message in partition_faults(workload):
        path = f"$.workload.prefill_partition[{index}]"
        yield Finding(path=path, rule=WORKLOAD, message=message)


def _decode_tokens(workload: Workload, spec: ModelRange) -> Iterator[Finding]:
    path, fed = "$.workload.decode_token_ids", workload.decode_token_ids
    if fed is None:
        if not spec.owns_final_norm_head:
            message = "is absent; a range without a head chooses no token to go on with"
            yield Finding(path=path, rule=WORKLOAD, message=message)
    elif len(fed) != workload.decode_steps:
        message = f"{len(fed)} tokens for {workload.decode_steps} decode steps"
        yield Finding(path=path, rule=WORKLOAD, message=message)


def _fixture(context: RuleContext) -> Iterator[Finding]:
    fixture, determinism = context.plan.reference_fixture, context.plan.determinism
    if fixture is None or determinism is None:
        return
    outputs = fixture_outputs(context.plan.adapter_data.spec)
    if sorted(fixture.outputs) != sorted(outputs):
        message = f"must be {' and '.join(outputs)}, not {', '.join(fixture.outputs)}"
        yield Finding(path="$.reference_fixture.outputs", rule=FIXTURE, message=message)
    for name, needed in (
        ("dtype", determinism.dtype),
        ("num_threads", determinism.num_threads),
        ("loader", FIXTURE_LOADER),
    ):
        got = getattr(fixture, name)
        if got != needed:
            message = f"the reference must be made with {needed!r}, not {got!r}"
            yield Finding(path=f"$.reference_fixture.{name}", rule=FIXTURE, message=message)


def _checks(context: RuleContext, checks: Checks) -> Iterator[Finding]:
    seen: set[str] = set()
    for where, listed, known in (
        ("acceptance", checks.acceptance, {**ACCEPTANCE, **_SOME_PLANS}),
        ("telemetry", checks.telemetry, TELEMETRY),
    ):
        for index, check in enumerate(listed):
            path = f"$.checks.{where}[{index}]"
            if check.id not in known:
                message = f"unknown {where} check {check.id!r}"
                yield Finding(path=f"{path}.id", rule=CHECKS, message=message)
            if check.id in seen:
                message = f"duplicate {check.id!r}"
                yield Finding(path=f"{path}.id", rule=CHECKS, message=message)
            seen.add(check.id)
            yield from _limit(context, f"{path}.limit", check)
    declared = {check.id for check in checks.acceptance}
    own = () if context.support is None else context.support.acceptance_checks
    own = (*own, *device_checks(context.plan.resources))
    plan = context.plan
    own = (*own, *stage_checks(has_stages=plan.stages is not None, has_nodes=has_nodes(plan)))
    for name in sorted({*ACCEPTANCE, *own} - declared):
        message = f"lacks {name!r}; no plan may leave out a check that decides the verdict"
        yield Finding(path="$.checks.acceptance", rule=CHECKS, message=message)
    for index, fault in limit_faults([vars(limit) for limit in checks.comparison or ()]):
        place, _, message = fault.partition(": ")
        yield Finding(path=f"$.checks.comparison[{index}]{place}", rule=CHECKS, message=message)


def _limit(context: RuleContext, path: str, check: CheckLimit) -> Iterator[Finding]:
    allowances = context.plan.memory_allowances
    if check.id == UNPLANNED_BYTES:
        if allowances is not None and check.limit != allowances.unplanned_host_bytes:
            message = f"limit {check.limit} is not the allowance, {allowances.unplanned_host_bytes}"
            yield Finding(path=path, rule=CHECKS, message=message)
    elif check.limit is not None and check.id not in LIMITED:
        message = f"{check.id!r} reads no limit, got {check.limit!r}"
        yield Finding(path=path, rule=CHECKS, message=message)
    elif isinstance(check.limit, str):
        message = f"{check.id!r} reads a number of bytes, got {check.limit!r}"
        yield Finding(path=path, rule=CHECKS, message=message)

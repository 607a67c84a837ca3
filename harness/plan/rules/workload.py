"""Sanity of what is executed and judged: it fits, it can be compared, and every check is known."""

from collections.abc import Iterator

from harness.plan.checks import ACCEPTANCE, EXACT_CORRECTNESS, TELEMETRY, UNPLANNED_BYTES
from harness.plan.records import CheckLimit, Checks, Finding, Workload
from harness.plan.rules.context import RuleContext, duplicate_findings

WORKLOAD = "workload"
FIXTURE = "reference-fixture"
CHECKS = "checks"


def workload_rules(context: RuleContext) -> Iterator[Finding]:
    """Workload, reference fixture and checks (native plans only)."""
    if context.plan.workload is not None:
        yield from _workload(context.plan.workload)
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


def _fixture(context: RuleContext) -> Iterator[Finding]:
    fixture, determinism = context.plan.reference_fixture, context.plan.determinism
    if fixture is None or determinism is None:
        return
    yield from duplicate_findings("$.reference_fixture.outputs", FIXTURE, fixture.outputs, "")
    checks = context.plan.checks
    if checks is None or all(check.id != EXACT_CORRECTNESS for check in checks.acceptance):
        return
    for name in ("dtype", "num_threads"):
        planned, reference = getattr(determinism, name), getattr(fixture, name)
        if planned != reference:
            message = f"{EXACT_CORRECTNESS} needs the run's {name}, {planned!r}; is {reference!r}"
            yield Finding(path=f"$.reference_fixture.{name}", rule=FIXTURE, message=message)


def _checks(context: RuleContext, checks: Checks) -> Iterator[Finding]:
    listed = [("acceptance", i, check) for i, check in enumerate(checks.acceptance)]
    listed += [("telemetry", i, check) for i, check in enumerate(checks.telemetry)]
    seen: set[str] = set()
    for where, index, check in listed:
        path = f"$.checks.{where}[{index}]"
        known = ACCEPTANCE.keys() | (TELEMETRY.keys() if where == "telemetry" else set())
        if check.id not in known:
            message = f"unknown {where} check {check.id!r}"
            yield Finding(path=f"{path}.id", rule=CHECKS, message=message)
        if check.id in seen:
            message = f"duplicate {check.id!r}"
            yield Finding(path=f"{path}.id", rule=CHECKS, message=message)
        seen.add(check.id)
        if check.id == UNPLANNED_BYTES:
            yield from _unplanned_limit(context, path, check)


def _unplanned_limit(context: RuleContext, path: str, check: CheckLimit) -> Iterator[Finding]:
    allowances = context.plan.memory_allowances
    if allowances is not None and check.limit != allowances.unplanned_host_bytes:
        message = f"limit {check.limit} is not the allowance, {allowances.unplanned_host_bytes}"
        yield Finding(path=f"{path}.limit", rule=CHECKS, message=message)

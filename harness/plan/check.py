"""Check a plan against every rule: all errors, sorted, before anything heavy starts.

Knows the order of checking, not the rules themselves (see ``rules``).
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.canonical import read_bounded
from harness.errors import InvalidInputError, PlanError
from harness.plan.environment import Environment
from harness.plan.load import (
    MAX_PLAN_BYTES,
    MISFITS,
    LoadedPlan,
    check_sidecar,
    examine_plan,
)
from harness.plan.manifest import ManifestEntry, load_manifest
from harness.plan.published.names import PUBLISHED_SUPPORT
from harness.plan.published.result_r1 import PLAN_SCHEMA as PUBLISHED_SCHEMA
from harness.plan.records import Finding, Plan
from harness.plan.rules import RULES
from harness.plan.rules.context import AdapterSupport, RuleContext

__all__ = ["NOT_EVALUABLE_RULES", "AdapterSupport", "check_file", "check_plan"]

NOT_EVALUABLE_RULES = frozenset({"rule-05-environment"})
"""A plan that breaks only these is valid, and cannot be evaluated in that environment."""


def check_plan(
    plan: LoadedPlan,
    *,
    environment: Environment | None,
    support: AdapterSupport | None,
    manifest: Sequence[ManifestEntry] | None,
) -> list[Finding]:
    """List every broken rule, sorted by place.

    Args:
        plan: A plan whose form and digest hold.
        environment: Checks rules 2 and 5 when given.
        support: Checks rules 8 and 17 when given; a published plan brings its own names.
        manifest: Checks tensor keys, files and byte sums when given.
    """
    if support is None and plan.plan.schema == PUBLISHED_SCHEMA:
        support = PUBLISHED_SUPPORT
    context = RuleContext(
        plan=plan.plan, environment=environment, support=support, manifest=manifest
    )
    return sorted({finding for rule in RULES for finding in rule(context)})


def check_file(
    path: Path,
    *,
    environment: Environment | None = None,
    support_of: Callable[[Plan], AdapterSupport | None] = lambda plan: None,
) -> tuple[LoadedPlan | None, list[Finding]]:
    """Check a plan file with its sidecar and manifest, and list everything that is wrong.

    Args:
        path: The plan file; its manifest lies in ``manifests/`` beside it.
        environment: The machine to check for, if any.
        support_of: Finds the adapter of a plan (its layout), or ``None`` to leave rules 8 and 17.

    Returns:
        The plan, or ``None`` when its form does not allow to read it, and all findings.

    Raises:
        InvalidInputError: When the file cannot be read as a plan at all.
    """
    data = read_bounded(path, max_bytes=MAX_PLAN_BYTES)
    examined = examine_plan(data, where=str(path), path=path)
    findings = list(examined.findings)
    try:
        check_sidecar(path, data)
    except PlanError as error:
        findings.append(Finding(path="$", rule="sidecar", message=_one_line(error)))
    if examined.loaded is not None:
        checkpoint = examined.loaded.plan.checkpoint
        manifest = None
        if checkpoint is not None:
            try:
                manifest = load_manifest(path.parent, checkpoint.manifest)
            except InvalidInputError as error:
                where = "$.checkpoint.manifest"
                findings.append(Finding(path=where, rule="manifest", message=_one_line(error)))
        try:
            findings += check_plan(
                examined.loaded,
                environment=environment,
                support=support_of(examined.loaded.plan),
                manifest=manifest,
            )
        except MISFITS:
            # Only a document that violates its schema can keep the rules from being checked.
            if not examined.findings:
                raise
    return examined.loaded, sorted(set(findings))


def _one_line(error: InvalidInputError) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines())

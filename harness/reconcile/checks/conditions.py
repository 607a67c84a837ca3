"""Checks of the conditions: every child ran to its end, under the plan's binding and settings."""

from dataclasses import asdict
from itertools import groupby
from typing import Any

from harness.plan.check import check_plan
from harness.plan.partition import prefill_partition
from harness.plan.recipe import recipe_digest
from harness.plan.records import PLANES, RECORDED, REPLAYED_STEPS, Plan, Workload
from harness.reconcile.checks.processes import processes
from harness.reconcile.compare import compare
from harness.reconcile.findings import ABSENT, Findings, Key, KeyedRows, Row
from harness.reconcile.view import Subject

PACKAGE = "package_digest"
_COMPLETED: Row = {"outcome": "completed", "exit_code": 0, "signal": None}


def trials(subject: Subject, findings: Findings) -> None:
    """The fixture maker, and a producer and a witness per realization and stage, completed.

    Each is a process of its own, in its turn, and the tables are of it.
    """
    table = subject.view.table(findings, "trials")
    if table is None:
        return
    suffixes = [f" {stage.id}" for stage in subject.plan.stages or ()] or [""]
    expected: dict[Key, Row] = {
        (f"{child}{suffix}", realization): _COMPLETED
        for child in ("producer", "witness")
        for suffix in suffixes
        for realization in range(subject.view.num_realizations)
    }
    if subject.plan.reference_fixture is not None:
        expected["fixture", 0] = _COMPLETED
    findings.match(table, expected, rows_noun="a child process")
    processes(subject, findings, table)


def binding(subject: Subject, findings: Findings) -> None:
    """The plan keeps its rules; the record is about it, under the binding and settings it gives."""
    predicate, conditions = subject.predicate, subject.conditions
    for finding in check_plan(
        subject.loaded, environment=None, support=subject.support, manifest=subject.manifest
    ):
        findings.differ(
            f"plan/{finding.path}", f"a plan that keeps {finding.rule}", finding.message
        )
    _documents(findings, "$.plan", _plan_reference(subject), asdict(predicate.plan))
    if subject.plan.checkpoint is not None:
        digest = subject.plan.checkpoint.manifest.digest
        findings.equal("$.manifest_digest", digest, predicate.manifest_digest)
    if conditions.binding is None:
        findings.differ("$.environment", "an environment that the plan binds to", _problem(subject))
    else:
        recomputed = {
            "compute_units": dict(conditions.binding.compute_units),
            "memories": dict(conditions.binding.memories),
        }
        recorded = {
            "compute_units": dict(predicate.binding.compute_units),
            "memories": dict(predicate.binding.memories),
        }
        _documents(findings, "$.binding", recomputed, recorded)
    has_fixture = predicate.fixture is not None
    if has_fixture != (subject.plan.reference_fixture is not None):
        wanted = ABSENT if has_fixture else "the reference fixture's digests"
        findings.differ("$.fixture", wanted, "present" if has_fixture else ABSENT)
    if predicate.fixture is not None and subject.plan.reference_fixture is not None:
        recipe, outputs = recipe_digest(subject.loaded.document), _outputs_digest(subject)
        findings.equal("$.fixture.recipe_digest", recipe, predicate.fixture.recipe_digest)
        findings.equal("$.fixture.digest", outputs, predicate.fixture.digest)
    _facts(subject, findings)


def _outputs_digest(subject: Subject) -> str | None:
    """The fixture is named by the digest of its outputs' table, of stages the last one's."""
    outputs = [table for table in subject.predicate.tables if table.name == "fixture_outputs"]
    return outputs[-1].digest if outputs else None


def _problem(subject: Subject) -> str:
    return subject.conditions.problem or "none"


def _plan_reference(subject: Subject) -> dict[str, Any]:
    plan = subject.plan
    return {
        "digest": plan.digest,
        "file_digest": subject.loaded.file_digest,
        "schema": plan.schema,
        "plan_version": plan.plan_version,
        "model": {"repository": plan.model_repository, "revision": plan.model_revision},
    }


def _documents(
    findings: Findings, root: str, expected: dict[str, Any], actual: dict[str, Any]
) -> None:
    mismatches, _unbound = compare(expected, actual)
    for mismatch in mismatches:
        path = root + mismatch.path.removeprefix("$")
        findings.differ(path, mismatch.expected, mismatch.got)


def fact_text(value: object) -> str:
    """A setting as a child writes it into its facts: booleans as JSON has them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def planned_facts(plan: Plan) -> dict[str, str]:
    """Facts that a faithful child measures, as far as the plan determines them."""
    units = {unit.kind for node in plan.resources.nodes for unit in node.compute_units}
    facts = {"device_class": "+".join(sorted(units))}
    settings = plan.determinism
    if settings is not None:
        facts |= {
            "num_threads": fact_text(settings.num_threads),
            "dtype": settings.dtype,
            "kernel_set": settings.kernel_set,
            "deterministic_algorithms": fact_text(settings.deterministic_algorithms),
            "interop_threads": "1",
        }
    if plan.workload is not None:
        facts["geometry"] = planned_geometry(plan.workload)
        if plan.workload.decode_mode == RECORDED:
            steps = plan.workload.decode_steps * plan.workload.repetitions
            facts[REPLAYED_STEPS] = fact_text(steps)
    if plan.stages is not None and units == {"cuda-gpu"}:
        facts[PLANES] = "nccl"
    return facts


def planned_geometry(workload: Workload) -> str:
    """Prefill steps by rows, number of decode steps, and capacity, as facts write them."""
    chunks = [end - start for start, end in prefill_partition(workload)]
    prefill = "+".join(f"{len(list(group))}x{size}" for size, group in groupby(chunks))
    return f"prefill={prefill},decode={workload.decode_steps},positions={workload.max_positions}"


def _facts(subject: Subject, findings: Findings) -> None:
    key = subject.predicate.applicability_key
    recorded: dict[str, str] = {}
    if key is None:
        findings.differ("$.applicability_key", "the conditions of the run", ABSENT)
    else:
        fields = asdict(key)
        findings.equal("$.applicability_key.version", 1, fields.pop("version"))
        recorded = {name: fact_text(value) for name, value in fields.items()}
    package = subject.predicate.source.package_digest
    wanted = recorded | planned_facts(subject.plan)
    wanted |= {} if package is None else {PACKAGE: package}
    for name in recorded.keys() & planned_facts(subject.plan).keys():
        findings.equal(f"$.applicability_key.{name}", wanted[name], recorded[name])
    first: KeyedRows | None = None
    for _realization, table in subject.view.each(findings, "facts"):
        if (PACKAGE,) not in table.rows and package is None:
            findings.differ(table.path((PACKAGE,)), "the digest of the code that ran", ABSENT)
        for name, value in wanted.items():
            row = table.rows.get((name,))
            if row is None:
                findings.differ(table.path((name,)), value, ABSENT)
            else:
                findings.equal(f"{table.path((name,))}.value", value, row["value"])
        if first is None:
            first = table
        else:
            findings.match(table, first.rows, rows_noun="a fact as in the first realization")

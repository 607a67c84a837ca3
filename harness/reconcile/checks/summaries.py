"""Checks of what the producer's side says in sum: statuses, totals and the result digest."""

from collections import Counter, defaultdict

from harness.evidence.predicates import PLANTED_FAULT
from harness.measure.words import BLIND_SPOTS
from harness.reconcile.checks.memory import SETTLED, shrinkage
from harness.reconcile.findings import ABSENT, Findings
from harness.reconcile.intent import planned_bytes, recomputed_status
from harness.reconcile.view import Subject

MIRROR = "smallest_visible_mirror_bytes"
CUDA, CUDA_GRAPH, BLIND_SPOT = "cuda", "cuda_graph", "memory.blind_spot"


def agree(subject: Subject, findings: Findings) -> None:
    """Statuses, totals and claims are what tables, plan and this auditor give."""
    intents = {intent.id: intent for intent in subject.plan.materializations}
    observed: dict[str, int] = {}
    by_realization: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for realization, table in subject.view.each(findings, "materializations"):
        live = by_realization[realization]
        for key, row in table.rows.items():
            intent = intents.get(key[0])
            if intent is not None:
                path = f"{table.path(key)}.status"
                findings.equal(path, recomputed_status(intent, row), row["status"])
            if row["lifecycle"] == "live" and row["memory_resource_id"] is not None:
                live[row["memory_resource_id"]] += row["requested_bytes"]
    for live in by_realization.values():
        for memory, total in live.items():
            observed[memory] = max(observed.get(memory, 0), total)
    planned = planned_bytes(
        intent
        for intent in intents.values()
        if intent.requirement == "required" and intent.persistence == "persistent"
    )
    num_steps = sum(len(table.rows) for _realization, table in subject.view.each(findings, "steps"))
    totals = subject.predicate.totals
    _totals(findings, "$.totals.planned_bytes", planned, totals.get("planned_bytes"))
    _totals(findings, "$.totals.observed_bytes", observed, totals.get("observed_bytes"))
    findings.equal("$.totals.num_steps", num_steps, totals.get("num_steps"))
    findings.equal(f"$.totals.{MIRROR}", smallest_visible(subject, findings), totals.get(MIRROR))
    for name in sorted(totals.keys() - {"planned_bytes", "observed_bytes", "num_steps", MIRROR}):
        findings.differ(f"$.totals.{name}", ABSENT, "a total that no table gives")
    _claims(subject, findings)


def smallest_visible(subject: Subject, findings: Findings) -> int | None:
    """The smallest copy that every reading after population would have shown, in bytes."""
    allowances = subject.plan.memory_allowances
    if allowances is None:
        return None
    visible: list[int] = []
    for _realization, table in subject.view.each(findings, "checkpoints"):
        baseline = table.rows.get(("baseline",))
        for point in SETTLED:
            row = table.rows.get((point,))
            if row is not None:
                # A copy can also hide in what its kind of memory gave back since the baseline.
                shrunk = 0 if baseline is None else shrinkage(baseline, row)
                growth = row["unplanned_bytes"] - shrunk
                visible.append(allowances.unplanned_host_bytes + 1 - growth)
    return max(0, *visible) if visible else None


def _claims(subject: Subject, findings: Findings) -> None:
    """What was not executed or cannot be seen is said, all of it, and nothing else is claimed."""
    units = {unit.kind for node in subject.plan.resources.nodes for unit in node.compute_units}
    labels = [claim.label for claim in subject.predicate.claims if claim.name == CUDA]
    if "cuda-gpu" not in units:
        findings.equal("$.claims.cuda", ["not_executed"], labels)
    elif "not_executed" in labels:
        findings.differ("$.claims.cuda", "no label not_executed: a CUDA device is bound", labels)
    graph = [claim.label for claim in subject.predicate.claims if claim.name == CUDA_GRAPH]
    findings.equal(f"$.claims.{CUDA_GRAPH}", ["not_executed"], graph)
    said: Counter[tuple[str, str]] = Counter()
    said.update((c.label, c.detail) for c in subject.predicate.claims if c.name == BLIND_SPOT)
    spots: Counter[tuple[str, str]] = Counter()
    spots.update(("not_evaluated", spot) for spot in BLIND_SPOTS)
    for label, detail in sorted((spots - said).elements()):
        findings.differ(f"$.claims.{BLIND_SPOT}", f"{label}: {detail}", ABSENT)
    for label, detail in sorted((said - spots).elements()):
        findings.differ(f"$.claims.{BLIND_SPOT}", ABSENT, f"{label}: {detail}")
    known = {CUDA, CUDA_GRAPH, BLIND_SPOT, PLANTED_FAULT}
    for claim in subject.predicate.claims:
        if claim.name == PLANTED_FAULT:
            findings.differ(f"$.claims.{PLANTED_FAULT}", "no fault planted", claim.detail)
    for name in sorted({c.name for c in subject.predicate.claims} - known):
        findings.differ(f"$.claims.{name}", ABSENT, "a claim that nothing supports")


def _totals(findings: Findings, path: str, recomputed: dict[str, int], recorded: object) -> None:
    given = recorded if isinstance(recorded, dict) else {}
    for memory in sorted(recomputed.keys() | given.keys()):
        findings.equal(f"{path}.{memory}", recomputed.get(memory, 0), given.get(memory, 0))


def result_digest(subject: Subject, findings: Findings) -> None:
    """The recorded result digest is the one that the tables give."""
    if subject.result_digest is None:
        findings.differ("$.result_digest", "tables that make a result", subject.result_problem)
    else:
        findings.equal("$.result_digest", subject.result_digest, subject.predicate.result_digest)

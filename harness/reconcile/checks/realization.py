"""Checks of what was realized: materializations, release of staging, authorities, executions.

Every expectation is computed from the plan; the producer's status column is not looked at here.
"""

from collections.abc import Mapping, Sequence

from harness.plan.records import Materialization
from harness.reconcile.checks.ledger import unmapped
from harness.reconcile.findings import Findings, Row
from harness.reconcile.intent import (
    LIVE,
    REALIZED,
    has_identity,
    is_transient,
    is_wanted,
    passing_columns,
    passing_status,
    qualifying_ids,
    recomputed_status,
    residencies,
)
from harness.reconcile.view import Subject


def materializations(subject: Subject, findings: Findings) -> None:
    """Each planned copy is there (or gone) exactly as planned, and nothing else is."""
    plan = subject.plan
    intents = {intent.id: intent for intent in plan.materializations}
    forbidden = {
        (rule.logical_state_id, rule.memory_resource_id)
        for rule in plan.forbidden_persistent_materializations
    }
    for _realization, table in subject.view.each(findings, "materializations"):
        expected = {(intent.id,): passing_columns(intent) for intent in intents.values()}
        findings.match(table, expected, rows_noun="a planned materialization")
        for key, row in table.rows.items():
            path = table.path(key)
            intent = intents.get(key[0])
            if intent is not None:
                _one(findings, path, intent, row)
            place = (row["logical_state_id"], row["memory_resource_id"])
            # Nothing says that a copy which no plan names will go, so it counts as kept.
            is_kept = row["lifecycle"] == LIVE and not (intent and is_transient(intent))
            if is_kept and place in forbidden:
                wanted = f"no persistent copy of {place[0]} in {place[1]}"
                findings.differ(f"{path}.memory_resource_id", wanted, "a live one")


def _one(findings: Findings, path: str, intent: Materialization, row: Row) -> None:
    status = recomputed_status(intent, row)
    required = passing_status(intent)
    findings.require(
        status == required, path, f"a row that amounts to {required}", f"one of {status}"
    )
    if not (is_wanted(intent) and is_transient(intent)):
        findings.equal(f"{path}.qualifying_ids", [], row["qualifying_ids"])
    if not is_wanted(intent):
        findings.equal(f"{path}.allocated_bytes", 0, row["allocated_bytes"])
    elif not is_transient(intent):
        findings.require(
            row["allocated_bytes"] >= row["requested_bytes"],
            f"{path}.allocated_bytes",
            f"at least the requested {row['requested_bytes']}",
            str(row["allocated_bytes"]),
        )


def release(subject: Subject, findings: Findings) -> None:
    """Staging went only after another observed copy allowed it, and it is gone from memory."""
    plan = subject.plan
    staging = [
        intent for intent in plan.materializations if is_transient(intent) and is_wanted(intent)
    ]
    staying = residencies(plan)
    for realization, table in subject.view.each(findings, "materializations"):
        rows = {key[0]: row for key, row in table.rows.items()}
        arenas = subject.view.table(findings, "arenas", realization)
        for intent in staging:
            row = rows.get(intent.id)
            path = table.path((intent.id,))
            if row is None:
                findings.differ(path, "a released staging", "absent")
                continue
            _released(findings, path, intent, row)
            _authorized(findings, path, staying.get(intent.logical_state_id, ()), intent, rows)
            if arenas is not None:
                unmapped(findings, arenas, intent)


def _released(findings: Findings, path: str, intent: Materialization, row: Row) -> None:
    findings.require(
        has_identity(intent, row),
        path,
        "the planned state, representation and memory",
        f"{row['logical_state_id']}, {row['representation']}, {row['memory_resource_id']}",
    )
    findings.columns(
        path,
        {
            "lifecycle": "released",
            "bytes_before_release": intent.expected_bytes,
            "bytes_after_release": 0,
            "released_bytes": intent.expected_bytes,
        },
        row,
    )


def _authorized(
    findings: Findings,
    path: str,
    staying: Sequence[Materialization],
    intent: Materialization,
    rows: Mapping[str, Row],
) -> None:
    recomputed = qualifying_ids(staying, intent, rows)
    recorded = rows[intent.id]["qualifying_ids"]
    findings.equal(f"{path}.qualifying_ids", recomputed, recorded)
    if not recomputed:
        findings.differ(
            f"{path}.qualifying_ids",
            f"another required, persistent, live copy of {intent.logical_state_id}",
            "none was observed as planned",
        )


def authorities(subject: Subject, findings: Findings) -> None:
    """Each mutable state is owned by the planned copy under the planned lineage, at both points."""
    plan = subject.plan
    memories = {intent.id: intent.memory_resource_id for intent in plan.materializations}
    intents = {intent.id: intent for intent in plan.materializations}
    expected = {
        (authority.logical_state_id, authority.materialization_id, point): {
            "lineage": authority.lineage,
            "memory_resource_id": memories.get(authority.materialization_id),
        }
        for authority in plan.authorities
        for point in ("after_population", "after_decode")
    }
    for realization, table in subject.view.each(findings, "authorities"):
        findings.match(table, expected, rows_noun="an authority")
        owners = subject.view.table(findings, "materializations", realization)
        if owners is None:
            continue
        for authority in plan.authorities:
            key = (authority.materialization_id,)
            intent, row = intents.get(key[0]), owners.rows.get(key)
            if intent is None or row is None or recomputed_status(intent, row) != REALIZED:
                findings.differ(owners.path(key), "a live, realized owner", "none as planned")


def executions(subject: Subject, findings: Findings) -> None:
    """Each planned execution was active, on the planned compute unit."""
    expected = {
        (execution.id,): {
            "strategy_unit": execution.strategy_unit,
            "compute_unit_id": execution.compute_unit_id,
            "status": "ACTIVE",
        }
        for execution in subject.plan.execution
    }
    for _realization, table in subject.view.each(findings, "executions"):
        findings.match(table, expected, rows_noun="an execution")

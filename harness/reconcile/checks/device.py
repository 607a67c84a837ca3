"""The check of a device's own memory: the allocator's blocks are the planned ones, and no others.

The witness reads pages of a process; memory of a device it cannot see. What is judged here comes
from the allocator's snapshot, taken by the producer at every point.
"""

from harness.plan.records import Materialization
from harness.reconcile.checks.ledger import ALIGNMENT_BYTES, device_memories, live_at
from harness.reconcile.checks.memory import SETTLED
from harness.reconcile.findings import Findings, Key, KeyedRows, Row
from harness.reconcile.view import POINTS, Subject


def device(subject: Subject, findings: Findings) -> None:
    """Every arena is one block of its size; what else is in use is within the allowance."""
    memories = device_memories(subject.plan)
    findings.require(bool(memories), "$.resources", "a memory of a device", "none")
    for realization, arenas in subject.view.each(findings, "device_arenas"):
        _arenas(subject, findings, arenas, set(memories))
        ledger = subject.view.table(findings, "ledger", realization)
        if ledger is not None:
            _agrees(findings, arenas, ledger, memories)
    allowances = subject.plan.memory_allowances
    allowed = (None if allowances is None else allowances.unplanned_device_bytes) or 0
    for _realization, table in subject.view.each(findings, "device_memory"):
        expected: dict[Key, Row] = {(point, name): {} for point in POINTS for name in memories}
        findings.match(table, expected, rows_noun="a reading")
        for key, row in table.rows.items():
            _others(findings, table, key, row, allowed)


def _arenas(subject: Subject, findings: Findings, arenas: KeyedRows, memories: set[str]) -> None:
    live: dict[Key, Materialization] = {
        (point, intent.id): intent
        for point in POINTS
        for intent in live_at(subject.plan, point)
        if intent.memory_resource_id in memories
    }
    expected = {
        key: {"memory_resource_id": intent.memory_resource_id} for key, intent in live.items()
    }
    findings.match(arenas, expected, rows_noun="an arena")
    specs = subject.specs or {}
    for key, row in arenas.rows.items():
        if key not in live:
            continue
        intent, path = live[key], arenas.path(key)
        tensors = specs.get((intent.logical_state_id, intent.representation))
        least, requested = max(intent.expected_bytes, 1), row["requested_bytes"]
        if tensors is not None:
            most = least + ALIGNMENT_BYTES * len(tensors)
            fits = least <= requested <= most
            findings.require(fits, f"{path}.requested_bytes", f"{least} to {most}", requested)
        ordered = least <= requested <= row["block_bytes"] <= row["segment_bytes"]
        wanted = f"planned {least} <= requested <= block <= segment"
        got = f"{requested}, {row['block_bytes']}, {row['segment_bytes']}"
        findings.require(ordered, path, wanted, got)


def _agrees(findings: Findings, arenas: KeyedRows, ledger: KeyedRows, memories: list[str]) -> None:
    """The ledger counts the segments that the allocator reports."""
    for point in POINTS:
        for name in memories:
            rows = [r for k, r in arenas.rows.items() if k[0] == point]
            total = sum(r["segment_bytes"] for r in rows if r["memory_resource_id"] == name)
            row = ledger.rows.get((point, name))
            if row is not None:
                path = f"{ledger.path((point, name))}.allocated_bytes"
                findings.equal(path, total, row["allocated_bytes"])


def _others(findings: Findings, table: KeyedRows, key: Key, row: Row, allowed: int) -> None:
    path, point = table.path(key), key[0]
    baseline = table.rows.get(("baseline", *key[1:]))
    others, segments = row["other_block_bytes"], row["other_segment_bytes"]
    within = 0 <= others <= segments
    findings.require(within, f"{path}.other_block_bytes", f"from 0 to {segments}", others)
    if baseline is not None and point in SETTLED:
        # A graph's memory is in no block between its replays, and in segments of its own.
        for column in ("other_block_bytes", "other_segment_bytes"):
            most = baseline[column] + allowed
            findings.require(
                row[column] <= most, f"{path}.{column}", f"at most {most}", row[column]
            )
    peak = row["peak_block_bytes"]
    findings.require(peak >= others, f"{path}.peak_block_bytes", f"at least {others}", peak)
    used = row["used_bytes"]
    findings.require(used >= segments, f"{path}.used_bytes", f"at least {segments}", used)

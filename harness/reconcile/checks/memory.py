"""Checks of memory: planned bytes as the ledger and the witness saw them, and nothing beside."""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from harness.plan.records import Materialization, MemoryAllowances, Plan
from harness.reconcile.findings import ABSENT, Findings, Key, KeyedRows, Row
from harness.reconcile.intent import is_transient, is_wanted, planned_bytes
from harness.reconcile.view import POINTS, Subject, memory_ids

_SETTLED = ("after_population", "after_release", "after_decode")
"""Points at which nothing unplanned may be left."""
_RELEASED = ("after_release", "after_decode")
_NOT_FALLING = (
    "read_at",
    "vm_hwm_bytes",
    "max_rss_bytes",
    "minor_faults",
    "major_faults",
    "swap_in_pages",
    "swap_out_pages",
)
_GROWING_KINDS = ("private_anonymous_bytes", "shared_anonymous_bytes", "memfd_bytes")


def live_at(plan: Plan, point: str) -> list[Materialization]:
    """Planned materializations that are in memory at a lifecycle point."""
    wanted = [intent for intent in plan.materializations if is_wanted(intent)]
    if point == "baseline":
        return []
    if point == "after_staging":
        return [intent for intent in wanted if is_transient(intent)]
    if point in _RELEASED:
        return [intent for intent in wanted if not is_transient(intent)]
    return wanted


def declared_at(plan: Plan, point: str) -> list[Materialization]:
    """Materializations that the witness reads at a point: released ones too, to see them gone."""
    later = "after_population" if point in _RELEASED else point
    return live_at(plan, later)


def unplanned(subject: Subject, findings: Findings) -> None:
    """Pages beyond baseline and arenas stay within the allowance; no tensor is outside an arena."""
    allowances = subject.plan.memory_allowances
    if allowances is None:
        findings.not_evaluated("$.memory_allowances", "an allowance in the plan", ABSENT)
        return
    limit = _limit(subject.plan, allowances)
    for _realization, table in subject.view.each(findings, "checkpoints"):
        baseline = table.rows.get(("baseline",))
        for key, row in table.rows.items():
            path = table.path(key)
            if baseline is not None:
                growth = _growth(baseline, row)
                findings.equal(f"{path}.unplanned_bytes", growth, row["unplanned_bytes"])
            if key[0] in _SETTLED:
                got = row["unplanned_bytes"]
                findings.require(got <= limit, f"{path}.unplanned_bytes", f"at most {limit}", got)
        _present(findings, table, [(point,) for point in ("baseline", *_SETTLED)])
    for _realization, table in subject.view.each(findings, "ledger"):
        for key, row in table.rows.items():
            if key[0] in _SETTLED:
                findings.columns(table.path(key), {"unplanned_tensor_bytes": 0}, row)


def _limit(plan: Plan, allowances: MemoryAllowances) -> float:
    """The allowance, or the check's own limit where that is lower."""
    own = [
        check.limit
        for check in (plan.checks.acceptance if plan.checks else ())
        if check.id == "memory.unplanned"
    ]
    return min([allowances.unplanned_host_bytes, *(n for n in own if isinstance(n, int | float))])


def _growth(baseline: Row, row: Row) -> int:
    """Growth per kind, each at least 0; growth of files is recorded as such."""
    growth: int = sum(max(0, row[kind] - baseline[kind]) for kind in _GROWING_KINDS)
    return growth + int(row["new_file_bytes"])


def _present(findings: Findings, table: KeyedRows, keys: Iterable[tuple[str, ...]]) -> None:
    for key in keys:
        if key not in table.rows:
            findings.differ(table.path(key), "a row", ABSENT)


def ledger(subject: Subject, findings: Findings) -> None:
    """Requested bytes are the planned ones at every point, and the witness saw every mapping."""
    plan = subject.plan
    for realization, table in subject.view.each(findings, "ledger"):
        arenas = subject.view.table(findings, "arenas", realization)
        rows = subject.view.table(findings, "materializations", realization)
        if arenas is None or rows is None:
            continue
        _arenas(findings, plan, arenas, rows)
        findings.match(table, _expected_ledger(plan, arenas), rows_noun="a reading")
        for memory in memory_ids(plan.resources):
            history = [table.rows.get((point, memory)) for point in POINTS]
            _peaks(findings, table, memory, history)
            _capacity(subject, findings, table, memory)


def _expected_ledger(plan: Plan, arenas: KeyedRows) -> dict[Key, Row]:
    expected: dict[Key, Row] = {}
    for point in POINTS:
        live = live_at(plan, point)
        requested = planned_bytes(live)
        for memory in memory_ids(plan.resources):
            mapped = sum(
                row["mapped_bytes"]
                for key, row in arenas.rows.items()
                if key[0] == point and row["memory_resource_id"] == memory
            )
            expected[(point, memory)] = {
                "requested_bytes": requested.get(memory, 0),
                "allocated_bytes": mapped,
                "num_arenas": sum(intent.memory_resource_id == memory for intent in live),
            }
    return expected


def _arenas(findings: Findings, plan: Plan, arenas: KeyedRows, rows: KeyedRows) -> None:
    expected: dict[Key, Row] = {}
    origins: dict[Key, str] = {}
    for point in POINTS:
        live = {intent.id for intent in live_at(plan, point)}
        for intent in declared_at(plan, point):
            columns: dict[str, object] = {"memory_resource_id": intent.memory_resource_id}
            row = rows.rows.get((intent.id,))
            if row is not None and not is_transient(intent):
                columns["declared_bytes"] = row["allocated_bytes"]
                origins[point, intent.id] = rows.path((intent.id,))
            if intent.id not in live:
                columns["mapped_bytes"] = 0
            expected[(point, intent.id)] = columns
    findings.match(arenas, expected, rows_noun="an arena", origins=origins)
    sizes: dict[str, tuple[str, int]] = {}
    for key in sorted(arenas.rows, key=lambda key: _order(key[0])):
        _one_arena(findings, plan, arenas, key, sizes)


def _one_arena(
    findings: Findings,
    plan: Plan,
    arenas: KeyedRows,
    key: tuple[str, ...],
    sizes: dict[str, tuple[str, int]],
) -> None:
    path, row = arenas.path(key), arenas.rows[key]
    point, identifier = key
    declared, mapped = row["declared_bytes"], row["mapped_bytes"]
    origin, first = sizes.setdefault(identifier, (path, declared))
    if declared != first:
        findings.differ(f"{path}.declared_bytes", f"{first} as in {origin}", declared)
    for intent in live_at(plan, point):
        if intent.id == identifier:
            findings.equal(f"{path}.mapped_bytes", declared, mapped)
            enough = declared >= intent.expected_bytes
            expected = f"at least the planned {intent.expected_bytes}"
            findings.require(enough, f"{path}.declared_bytes", expected, declared)
    resident = row["resident_bytes"]
    within = 0 <= resident <= mapped
    findings.require(within, f"{path}.resident_bytes", f"from 0 to {mapped}", resident)


def _order(point: str) -> int:
    return POINTS.index(point) if point in POINTS else len(POINTS)


def _peaks(findings: Findings, table: KeyedRows, memory: str, history: list[Row | None]) -> None:
    before = 0
    for point, row in zip(POINTS, history, strict=True):
        if row is None:
            continue
        peak, path = row["peak_allocated_bytes"], table.path((point, memory))
        least = max(before, row["allocated_bytes"])
        findings.require(
            least <= peak <= row["capacity_bytes"],
            f"{path}.peak_allocated_bytes",
            f"from {least} (allocated now, or the peak before) to {row['capacity_bytes']}",
            peak,
        )
        before = peak


def _capacity(subject: Subject, findings: Findings, table: KeyedRows, memory: str) -> None:
    real = subject.conditions.capacities().get(memory)
    for point in POINTS:
        row = table.rows.get((point, memory))
        if row is not None and real is not None:
            path = f"{table.path((point, memory))}.capacity_bytes"
            findings.equal(path, real, row["capacity_bytes"])


def invariants(subject: Subject, findings: Findings) -> None:
    """Each point was read once, in order, and what the kernel says of a process adds up."""
    for _realization, table in subject.view.each(findings, "checkpoints"):
        findings.match(table, {(point,): {} for point in POINTS}, rows_noun="a reading")
        order = [key[0] for key in table.rows if key[0] in POINTS]
        findings.equal(f"{table.where}.point", [p for p in POINTS if p in order], order)
        for key, row in table.rows.items():
            _process(findings, table.path(key), row)
        history = [(point, table.rows[(point,)]) for point in POINTS if (point,) in table.rows]
        for (_earlier, before), (point, after) in pairwise(history):
            _monotone(findings, table.path((point,)), before, after)


def _process(findings: Findings, path: str, row: Row) -> None:
    parts = row["rss_anon_bytes"] + row["rss_file_bytes"] + row["rss_shmem_bytes"]
    total = row["vm_rss_bytes"]
    if total != parts:
        findings.differ(
            f"{path}.vm_rss_bytes",
            f"rss_anon_bytes + rss_file_bytes + rss_shmem_bytes = {parts}",
            total,
        )
    high = row["vm_hwm_bytes"]
    findings.require(high >= total, f"{path}.vm_hwm_bytes", f"at least VmRSS, {total}", high)
    for column, value in row.items():
        if isinstance(value, int) and value < 0:
            findings.differ(f"{path}.{column}", "at least 0", value)


def _monotone(findings: Findings, path: str, before: Row, after: Row) -> None:
    for column in _NOT_FALLING:
        one, other = before[column], after[column]
        if one is not None and other is not None and other < one:
            findings.differ(f"{path}.{column}", f"at least {one}, as before", other)


def released(subject: Subject, findings: Findings) -> None:
    """After release the process holds no descriptor and no mapping of the checkpoint."""
    nothing: Mapping[str, list[str]] = {"checkpoint_descriptors": [], "checkpoint_mappings": []}
    for _realization, table in subject.view.each(findings, "checkpoints"):
        _present(findings, table, [(point,) for point in _RELEASED])
        for point in _RELEASED:
            if (point,) in table.rows:
                findings.columns(table.path((point,)), nothing, table.rows[(point,)])

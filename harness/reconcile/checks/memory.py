"""Checks of memory beside the plan: nothing unplanned, nothing kept, and figures that add up."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import pairwise

from harness.plan.records import MemoryAllowances, Plan
from harness.reconcile.checks.ledger import RELEASED_POINTS, unmapped
from harness.reconcile.findings import ABSENT, Findings, KeyedRows, Row
from harness.reconcile.intent import is_transient, is_wanted
from harness.reconcile.view import POINTS, Subject

SETTLED = ("after_population", "after_release", "after_decode")
"""Points at which nothing unplanned may be left."""
# High-water marks are no part of it: the kernel adds up per-CPU counters exactly when they are
# read and roughly when it remembers them, so a later mark can lie a little lower.
_NOT_FALLING = (
    "read_at",
    "minor_faults",
    "major_faults",
    "swap_in_pages",
    "swap_out_pages",
)
_GROWING_KINDS = ("private_anonymous_bytes", "shared_anonymous_bytes", "memfd_bytes")


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
            if key[0] in SETTLED:
                got = row["unplanned_bytes"]
                findings.require(got <= limit, f"{path}.unplanned_bytes", f"at most {limit}", got)
        _present(findings, table, [(point,) for point in ("baseline", *SETTLED)])
    hosts = {
        memory.id
        for node in subject.plan.resources.nodes
        for memory in node.memory_resources
        if memory.kind == "system-ram"
    }
    for _realization, table in subject.view.each(findings, "ledger"):
        for key, row in table.rows.items():
            _tensors(findings, table.path(key), key[0], row, is_host=key[1] in hosts)


def _tensors(findings: Findings, path: str, point: str, row: Row, *, is_host: bool) -> None:
    """Tensors outside every arena are counted for the host, and gone once all is populated."""
    got = row["unplanned_tensor_bytes"]
    if not is_host or point in SETTLED:
        findings.columns(path, {"unplanned_tensor_bytes": 0 if is_host else None}, row)
    else:
        counted = got is not None and got >= 0
        findings.require(counted, f"{path}.unplanned_tensor_bytes", "at least 0", got)


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


def shrinkage(baseline: Row, row: Row) -> int:
    """Bytes by which each kind of memory fell below the baseline, summed over the kinds."""
    shrunk: int = sum(max(0, baseline[kind] - row[kind]) for kind in _GROWING_KINDS)
    return shrunk


def _present(findings: Findings, table: KeyedRows, keys: Iterable[tuple[str, ...]]) -> None:
    for key in keys:
        if key not in table.rows:
            findings.differ(table.path(key), "a row", ABSENT)


def invariants(subject: Subject, findings: Findings) -> None:
    """Each point was read once, in order, and what the kernel says of a process adds up."""
    span = [
        _moment(findings, f"$.{name}", getattr(subject.predicate, name))
        for name in ("started_at", "ended_at")
    ]
    for _realization, table in subject.view.each(findings, "checkpoints"):
        _during(findings, table, subject, span)
        findings.match(table, {(point,): {} for point in POINTS}, rows_noun="a reading")
        order = [key[0] for key in table.rows if key[0] in POINTS]
        findings.equal(f"{table.where}.point", [p for p in POINTS if p in order], order)
        for key, row in table.rows.items():
            _process(findings, table.path(key), row)
        history = [(point, table.rows[(point,)]) for point in POINTS if (point,) in table.rows]
        for (_earlier, before), (point, after) in pairwise(history):
            _monotone(findings, table.path((point,)), before, after)


def _moment(findings: Findings, path: str, text: str) -> datetime | None:
    """A moment in UTC, or ``None`` after saying that there is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        findings.differ(path, "a moment in UTC", text)
        return None
    return moment


def _during(
    findings: Findings, table: KeyedRows, subject: Subject, span: list[datetime | None]
) -> None:
    """Every reading on the machine of the record was taken between start and end of the run."""
    start, end = span
    for key, row in table.rows.items():
        path = f"{table.path(key)}.read_at"
        read = _moment(findings, path, row["read_at"])
        if read is None or start is None or end is None or subject.is_elsewhere:
            continue  # the first machine's clock tells nothing of another's
        record = subject.predicate
        expected = f"from {record.started_at} to {record.ended_at}"
        findings.require(start <= read <= end, path, expected, row["read_at"])


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
    """After release the process holds no staging, and no descriptor or mapping of a checkpoint."""
    nothing: Mapping[str, list[str]] = {"checkpoint_descriptors": [], "checkpoint_mappings": []}
    for _realization, table in subject.view.each(findings, "checkpoints"):
        _present(findings, table, [(point,) for point in RELEASED_POINTS])
        for point in RELEASED_POINTS:
            if (point,) in table.rows:
                findings.columns(table.path((point,)), nothing, table.rows[(point,)])
    for _realization, arenas in subject.view.each(findings, "arenas"):
        for intent in subject.plan.materializations:
            if is_transient(intent) and is_wanted(intent):
                unmapped(findings, arenas, intent)

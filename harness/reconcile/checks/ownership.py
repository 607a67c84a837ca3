"""The check of pooled state: every position held has a slot of its own, and no slot is lost.

Judged after every step, from the counts that were taken in the pools' own tensors. Which pools
there are, and how many pages each has, follows from the planned tensors: pool ``p`` has one entry
of its tensor ``p.live`` per page. With pages of S slots, position i lies at offset i mod S of its
page, and what a policy evicts is a range [0, e): so [e, held) takes ceil(held / S) - floor(e / S)
pages. How much is evicted no plan says; it stays evicted, and it is the same in every repetition
and realization.
"""

from harness.reconcile.checks.steps import PlannedStep, step_keys
from harness.reconcile.findings import Findings, Key, KeyedRows, Row
from harness.reconcile.view import Subject

_LIVE = ".live"
_COUNTED = ("num_live", "num_available", "num_mapped", "num_evicted")
Planned = dict[Key, PlannedStep]
"""By key of the ``ownership`` table: the step after which a pool is counted, in order."""


def ownership(subject: Subject, findings: Findings) -> None:
    """Invariants of every pool after every step, alike in every repetition and realization."""
    workload, pages = subject.plan.workload, _pages(subject)
    if workload is None or pages is None:
        findings.not_evaluated("$.materializations", "the planned tensors of the pools", "unknown")
        return
    findings.require(bool(pages), "$.materializations", "a pool of mutable state", "none")
    planned = {(*key, pool): step for key, step in step_keys(subject.plan) for pool in pages}
    size = workload.page_size or 1
    expected = {key: _determined(step, size, pages[key[-1]]) for key, step in planned.items()}
    first: dict[Key, tuple[str, Row]] = {}
    for _realization, table in subject.view.each(findings, "ownership"):
        findings.match(table, expected, rows_noun="the ownership of a pool after a step")
        rows = {key: table.rows[key] for key in planned if key in table.rows}
        for key, row in rows.items():
            path = table.path(key)
            _counts(subject, findings, path, row, planned[key])
            origin, reference = first.setdefault(key[1:], (path, row))
            counted = {column: reference[column] for column in _COUNTED}
            findings.columns(path, counted, row, origin=origin)
        _stays_evicted(findings, table, rows)


def _pages(subject: Subject) -> dict[str, int] | None:
    """Planned pages by pool; ``None`` where no layout says."""
    if subject.specs is None:
        return None
    return {
        spec.name.removesuffix(_LIVE): spec.shape[0]
        for intent in subject.plan.materializations
        if intent.role == "mutable_authority"
        for spec in subject.specs.get((intent.logical_state_id, intent.representation), ())
        if spec.name.endswith(_LIVE)
    }


def _determined(step: PlannedStep, page_size: int, num_pages: int) -> Row:
    """The columns that the plan gives."""
    return {
        "page_size": page_size,
        "num_pages": num_pages,
        "num_positions": step.start_position + step.num_rows,
        "num_aliased": 0,
        "num_leaked": 0,
        "num_stale": 0,
    }


def _counts(subject: Subject, findings: Findings, path: str, row: Row, step: PlannedStep) -> None:
    """The columns that follow from how many positions are evicted: none without a policy."""
    workload = subject.plan.workload
    assert workload is not None
    held, evicted = step.start_position + step.num_rows, row["num_evicted"]
    most = 0 if subject.plan.eviction_policy is None else held
    wanted = f"at most {most} positions" if most else "0: the plan has no eviction policy"
    findings.require(evicted <= most, f"{path}.num_evicted", wanted, evicted)
    size = workload.page_size or 1
    live = -(-held // size) - evicted // size
    findings.equal(f"{path}.num_mapped", held - evicted, row["num_mapped"])
    findings.equal(f"{path}.num_live", live, row["num_live"])
    # Page 0 is nobody's.
    available = row["num_pages"] - 1 - row["num_live"]
    findings.equal(f"{path}.num_available", available, row["num_available"])


def _stays_evicted(findings: Findings, table: KeyedRows, rows: dict[Key, Row]) -> None:
    """Evicted positions are 0 or more, and never fewer than before.

    In the first repetition, which follows the prefill; the others are compared with it.
    """
    before: dict[str, int] = {}
    for key, row in rows.items():
        if key[0] == 0:
            pool, evicted = row["pool"], row["num_evicted"]
            least = before.get(pool, 0)
            path, wanted = f"{table.path(key)}.num_evicted", f"at least {least}, as evicted before"
            findings.require(evicted >= least, path, wanted, evicted)
            before[pool] = evicted

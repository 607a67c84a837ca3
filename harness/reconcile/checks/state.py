"""The self-proof of mutable state: decode changed it, restore brought it back, and it repeats."""

from collections.abc import Mapping

from harness.plan.records import Plan, Workload
from harness.reconcile.findings import ABSENT, Findings, KeyedRows, Row
from harness.reconcile.view import Subject

Snapshot = Mapping[str, Row]
"""Rows of one repetition and point, by tensor name."""


_REFERRED_POINTS = ("after_prefill", "after_decode")
"""Points at which the fixture maker's run has the state that the realization must have."""


def _points(workload: Workload) -> list[tuple[int, str]]:
    first = [(0, "before_prefill"), (0, "after_prefill")]
    return first + [
        (repetition, point)
        for repetition in range(workload.repetitions)
        for point in ("after_restore", "after_decode")
    ]


def _mutable_bytes(plan: Plan) -> int:
    return sum(
        intent.expected_bytes
        for intent in plan.materializations
        if intent.role == "mutable_authority"
    )


def selfproof(subject: Subject, findings: Findings) -> None:
    """Compare mutable state between points, realizations, and with the fixture maker's own run."""
    plan, workload = subject.plan, subject.plan.workload
    if workload is None:
        findings.not_evaluated("$.workload", "a workload in the plan", "none")
        return
    reference: dict[str, tuple[str, Snapshot]] = {}
    fixture = _fixture(subject, findings)
    for _realization, table in subject.view.each(findings, "states"):
        snapshots = _snapshots(findings, table, plan, workload)
        for (repetition, point), snapshot in snapshots.items():
            if fixture is not None and point in _REFERRED_POINTS:
                _as_fixture(findings, table, (repetition, point), snapshot, fixture)
        prefilled = snapshots.get((0, "after_prefill"))
        for (repetition, point), snapshot in snapshots.items():
            where = f"{table.where}[repetition={repetition},point={point}]"
            origin = reference.setdefault(point, (where, snapshot))
            _equal(findings, table, repetition, point, snapshot, origin)
            if prefilled is None:
                continue
            if point == "after_restore":
                origin = (f"{table.where}[repetition=0,point=after_prefill]", prefilled)
                _equal(findings, table, repetition, point, snapshot, origin)
            elif point in ("before_prefill", "after_decode"):
                changed = _digests(snapshot) != _digests(prefilled)
                findings.require(
                    changed, where, "digests other than after prefill", "the same digests"
                )


def _fixture(subject: Subject, findings: Findings) -> KeyedRows | None:
    """The fixture maker's states; ``None`` where there is no table, or none is planned."""
    if subject.plan.reference_fixture is None:
        return None
    table = subject.view.table(findings, "fixture_states")
    if table is not None:
        for key in table.rows:
            if key[0] not in _REFERRED_POINTS:
                findings.differ(table.path(key), ABSENT, "a state at no point of the reference")
    return table


def _as_fixture(
    findings: Findings,
    table: KeyedRows,
    key: tuple[int, str],
    snapshot: Snapshot,
    fixture: KeyedRows,
) -> None:
    """Names, sizes and digests of one snapshot are those of the fixture maker's own run."""
    repetition, point = key
    names = {name for there, name in fixture.rows if there == point}
    for name in sorted(snapshot.keys() | names):
        path, origin = table.path((repetition, point, name)), fixture.path((point, name))
        if name not in snapshot:
            findings.differ(path, f"a state as in {origin}", ABSENT)
        elif name not in names:
            findings.differ(origin, f"the reference of {path}", ABSENT)
        else:
            reference = fixture.rows[point, name]
            columns = {column: reference[column] for column in ("bytes", "digest")}
            findings.columns(path, columns, snapshot[name], origin=origin)


def _snapshots(
    findings: Findings, table: KeyedRows, plan: Plan, workload: Workload
) -> dict[tuple[int, str], Snapshot]:
    found: dict[tuple[int, str], dict[str, Row]] = {key: {} for key in _points(workload)}
    for key, row in table.rows.items():
        repetition, point, name = key
        if (repetition, point) in found:
            found[(repetition, point)][name] = row
        else:
            findings.differ(table.path(key), ABSENT, "a state at no planned point")
    planned_bytes = _mutable_bytes(plan)
    for (repetition, point), snapshot in found.items():
        where = f"{table.where}[repetition={repetition},point={point}]"
        total = sum(row["bytes"] for row in snapshot.values())
        findings.equal(f"{where}.bytes", planned_bytes, total)
    return {key: snapshot for key, snapshot in found.items() if snapshot}


def _digests(snapshot: Snapshot) -> dict[str, str]:
    return {name: row["digest"] for name, row in snapshot.items()}


def _equal(
    findings: Findings,
    table: KeyedRows,
    repetition: int,
    point: str,
    snapshot: Snapshot,
    origin: tuple[str, Snapshot],
) -> None:
    where, reference = origin
    for name in sorted(snapshot.keys() | reference.keys()):
        path = table.path((repetition, point, name))
        if name not in snapshot or name not in reference:
            findings.differ(path, f"the same tensors as {where}", f"{name} in only one of them")
            continue
        for column in ("bytes", "digest"):
            one, other = reference[name][column], snapshot[name][column]
            if one != other:
                findings.differ(f"{path}.{column}", f"{one} as in {where}", other)

"""Check of the memory ledger: planned bytes at every point, as ledger and witness both saw them.

What lies in a device's own memory no witness sees: the ledger's sums of it are judged by the check
of that memory.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from harness.plan.records import ACCELERATOR_VRAM, Materialization, Plan
from harness.reconcile.findings import ABSENT, Findings, Key, KeyedRows, Row, same
from harness.reconcile.intent import is_transient, is_wanted, planned_bytes
from harness.reconcile.view import POINTS, Subject, memory_ids

RELEASED_POINTS = ("after_release", "after_decode")
_SIZES = ("declared_bytes", "mapped_bytes", "resident_bytes")
ALIGNMENT_BYTES = 64
"""Each tensor of an arena starts at a multiple of this."""
MAX_PAGE_BYTES = 64 << 10
"""An arena ends on a page; no supported kernel has larger base pages."""


def device_memories(plan: Plan) -> list[str]:
    """Ids of the memories that only a driver can measure, in plan order."""
    return [
        memory.id
        for node in plan.resources.nodes
        for memory in node.memory_resources
        if memory.kind == ACCELERATOR_VRAM
    ]


def is_live(intent: Materialization, point: str) -> bool:
    """Whether a materialization is to be in memory at a lifecycle point."""
    if not is_wanted(intent) or point not in POINTS or point == "baseline":
        return False
    if point == "after_staging":
        return is_transient(intent)
    return not (is_transient(intent) and point in RELEASED_POINTS)


def live_at(plan: Plan, point: str) -> list[Materialization]:
    """Planned materializations that are in memory at a lifecycle point."""
    return [intent for intent in plan.materializations if is_live(intent, point)]


def declared_at(plan: Plan, point: str) -> list[Materialization]:
    """Materializations that the witness reads at a point: released ones too, to see them gone."""
    return _witnessed(plan, live_at(plan, _declared_as_of(point)))


def _declared_as_of(point: str) -> str:
    """The point whose live arenas are declared at ``point``."""
    return "after_population" if point in RELEASED_POINTS else point


def _witnessed(plan: Plan, intents: list[Materialization]) -> list[Materialization]:
    hidden = device_memories(plan)
    return [intent for intent in intents if intent.memory_resource_id not in hidden]


def unmapped(findings: Findings, arenas: KeyedRows, intent: Materialization) -> None:
    """After release the witness sees nothing where a staging was declared."""
    for point in RELEASED_POINTS:
        key = (point, intent.id)
        row = arenas.rows.get(key)
        if row is None:
            findings.differ(arenas.path(key), "the witness's reading of it", ABSENT)
        else:
            findings.columns(arenas.path(key), {"mapped_bytes": 0, "resident_bytes": 0}, row)


def ledger(subject: Subject, findings: Findings) -> None:
    """Requested bytes are the planned ones at every point, and the witness saw every mapping."""
    plan = subject.plan
    for realization, table in subject.view.each(findings, "ledger"):
        arenas = subject.view.table(findings, "arenas", realization)
        rows = subject.view.table(findings, "materializations", realization)
        if arenas is None or rows is None:
            continue
        _arenas(findings, plan, arenas, rows)
        _padding(subject, findings, arenas)
        findings.match(table, _expected_ledger(plan, arenas), rows_noun="a reading")
        for memory in memory_ids(plan.resources):
            history = [table.rows.get((point, memory)) for point in POINTS]
            _peaks(findings, table, memory, history)
            _capacity(subject, findings, table, memory)


def _expected_ledger(plan: Plan, arenas: KeyedRows) -> dict[Key, Row]:
    expected: dict[Key, Row] = {}
    hidden = device_memories(plan)
    allocated: Counter[tuple[str, str]] = Counter()
    for key, row in arenas.rows.items():
        if row["mapped_bytes"] > 0:
            allocated[key[0], row["memory_resource_id"]] += row["declared_bytes"]
    for point in POINTS:
        live = live_at(plan, point)
        requested = planned_bytes(live)
        for memory in memory_ids(plan.resources):
            seen = {} if memory in hidden else {"allocated_bytes": allocated[point, memory]}
            expected[(point, memory)] = {
                "requested_bytes": requested.get(memory, 0),
                "num_arenas": sum(intent.memory_resource_id == memory for intent in live),
                **seen,
            }
    return expected


class _ExpectedArenas(Mapping[Key, Row]):
    """What every reading of an arena must say; worked out when asked, since readings are many."""

    def __init__(self, plan: Plan, rows: KeyedRows) -> None:
        self._plan = plan
        self._rows = rows
        witnessed = _witnessed(plan, list(plan.materializations))
        self.intents = {intent.id: intent for intent in witnessed}

    def __getitem__(self, key: Key) -> Row:
        point, identifier = key
        intent = self.intents[identifier]
        if not is_live(intent, _declared_as_of(point)):
            raise KeyError(key)
        columns = _columns(intent, self._rows)
        return columns if is_live(intent, point) else {**columns, "mapped_bytes": 0}

    def __iter__(self) -> Iterator[Key]:
        for point in POINTS:
            for intent in declared_at(self._plan, point):
                yield point, intent.id

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _arenas(findings: Findings, plan: Plan, arenas: KeyedRows, rows: KeyedRows) -> None:
    expected = _ExpectedArenas(plan, rows)
    findings.match(
        arenas,
        expected,
        rows_noun="an arena",
        origin=lambda key: rows.path((key[1],)) if "declared_bytes" in expected[key] else "",
    )
    sizes: dict[str, tuple[Key, int]] = {}
    for key in sorted(arenas.rows, key=lambda key: _order(key[0])):
        planned = expected.intents.get(key[1])
        size = None
        if planned is not None and is_live(planned, key[0]):
            size = planned.expected_bytes
        _one_arena(findings, arenas, key, size, sizes)


def _columns(intent: Materialization, rows: KeyedRows) -> Row:
    """What every reading of a materialization's arena must say."""
    row = rows.rows.get((intent.id,))
    if row is None or is_transient(intent):
        return {"memory_resource_id": intent.memory_resource_id}
    return {
        "memory_resource_id": intent.memory_resource_id,
        "declared_bytes": row["allocated_bytes"],
    }


def _padding(subject: Subject, findings: Findings, arenas: KeyedRows) -> None:
    """No arena has room for more than its tensors, each aligned, and the rest of one page."""
    specs = subject.specs or {}
    bounds = {}
    for intent in subject.plan.materializations:
        form = (intent.logical_state_id, intent.representation)
        if form in specs:
            padding = ALIGNMENT_BYTES * len(specs[form]) + MAX_PAGE_BYTES
            bounds[intent.id] = intent.expected_bytes + padding
    for key, row in arenas.rows.items():
        bound, declared = bounds.get(key[1]), row["declared_bytes"]
        if bound is not None:
            path = f"{arenas.path(key)}.declared_bytes"
            findings.require(declared < bound, path, f"below {bound}", declared)


def _one_arena(
    findings: Findings,
    arenas: KeyedRows,
    key: Key,
    planned_size: int | None,
    sizes: dict[str, tuple[Key, int]],
) -> None:
    """Judge one reading: a size that never changes, wholly mapped while it is to be live."""
    row = arenas.rows[key]
    declared, mapped, resident = (row[name] for name in _SIZES)
    origin, first = sizes.setdefault(key[1], (key, declared))
    is_as_planned = planned_size is None or (same(declared, mapped) and declared >= planned_size)
    if declared == first and is_as_planned and 0 <= resident <= mapped:
        return
    path = arenas.path(key)
    if declared != first:
        wanted = f"{first} as in {arenas.path(origin)}"
        findings.differ(f"{path}.declared_bytes", wanted, declared)
    if planned_size is not None:
        findings.equal(f"{path}.mapped_bytes", declared, mapped)
        expected = f"at least the planned {planned_size}"
        findings.require(declared >= planned_size, f"{path}.declared_bytes", expected, declared)
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

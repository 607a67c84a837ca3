"""A record's tables as the checks read them: by key, and never taken for granted.

A table that is missing or cannot be read is a difference of the check that needs it, not a crash.
Knows which tables exist and how often; knows nothing of what is in them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.errors import HarnessError
from harness.evidence.declared import TABLES
from harness.evidence.predicates import RecordPredicate
from harness.evidence.record import LoadedRecord
from harness.plan.bind import bind
from harness.plan.binding import Binding
from harness.plan.check import AdapterSupport
from harness.plan.environment import Environment, parse_environment
from harness.plan.layout import Form, TensorSpec
from harness.plan.load import LoadedPlan
from harness.plan.manifest import ManifestEntry
from harness.plan.records import Plan, Resources
from harness.reconcile.findings import Findings, KeyedRows, Row

POINTS = (
    "baseline",
    "after_staging",
    "after_allocation",
    "after_population",
    "after_release",
    "after_decode",
)
"""Lifecycle points at which a process is measured, in order."""
_PER_REALIZATION = frozenset({"producer", "witness"})
_WHOLE_RECORD = frozenset({"fixture", "supervisor"})


def expected_tables(num_realizations: int, checks: Collection[str]) -> list[tuple[str, int | None]]:
    """Every table that a complete record holds, with its realization (``None``: record-wide).

    Args:
        num_realizations: Fresh realizations that the plan asks for.
        checks: Ids of the checks that the plan declares.
    """
    expected: list[tuple[str, int | None]] = []
    for table in TABLES.values():
        if table.check is not None and table.check not in checks:
            continue
        if table.writer in _PER_REALIZATION:
            expected.extend((table.name, index) for index in range(num_realizations))
        elif table.writer in _WHOLE_RECORD:
            expected.append((table.name, None))
    return expected


def table_path(name: str, realization: int | None) -> str:
    """The place of one table, such as ``tables/steps/r0``."""
    return f"tables/{name}" if realization is None else f"tables/{name}/r{realization}"


class View:
    """Reads each table of one record once."""

    def __init__(self, record: LoadedRecord, num_realizations: int) -> None:
        self._record = record
        self.num_realizations = num_realizations
        self._read: dict[tuple[str, int | None], KeyedRows | str] = {}

    def table(
        self, findings: Findings, name: str, realization: int | None = None
    ) -> KeyedRows | None:
        """Rows of one table by key, or ``None`` after saying why there are none."""
        where = table_path(name, realization)
        found = self._load(name, realization)
        if isinstance(found, str):
            findings.differ(where, "a readable table", found)
            return None
        for key in sorted(found.repeated, key=repr):
            findings.differ(found.path(key), "one row", "several rows with this key")
        return found

    def each(self, findings: Findings, name: str) -> Iterator[tuple[int, KeyedRows]]:
        """The table of every realization of the plan that can be read."""
        for realization in range(self.num_realizations):
            found = self.table(findings, name, realization)
            if found is not None:
                yield realization, found

    def rows(self, name: str, realization: int | None = None) -> list[Row] | None:
        """Rows of one table, or ``None`` when it cannot be read."""
        found = self._load(name, realization)
        return None if isinstance(found, str) else list(found.rows.values())

    def _load(self, name: str, realization: int | None) -> KeyedRows | str:
        key = (name, realization)
        if key not in self._read:
            try:
                rows: Sequence[Row] = self._record.rows(name, realization)
                self._read[key] = KeyedRows(table_path(name, realization), TABLES[name].key, rows)
            except HarnessError as error:
                self._read[key] = str(error)
        return self._read[key]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The recorded environment, and the binding that plan and environment give."""

    environment: Environment | None
    binding: Binding | None
    problem: str | None
    """Why there is no environment or no binding."""

    def capacities(self) -> dict[str, int]:
        """Capacity in bytes of the real memory behind each plan memory id."""
        if self.environment is None or self.binding is None:
            return {}
        real = {
            memory.id: memory.capacity_bytes
            for node in self.environment.resources.nodes
            for memory in node.memory_resources
        }
        return {plan_id: real[real_id] for plan_id, real_id in self.binding.memories.items()}


def conditions_of(plan: Plan, predicate: RecordPredicate) -> Conditions:
    """Read a record's environment and bind the plan to it anew."""
    environment = binding = problem = None
    try:
        document = dict(predicate.environment)
        environment = parse_environment(document, where="$.environment")
        binding = bind(plan.resources, environment)
    except HarnessError as error:
        problem = str(error)
    return Conditions(environment=environment, binding=binding, problem=problem)


def memory_ids(resources: Resources) -> list[str]:
    """Ids of every memory, in plan order."""
    return [memory.id for node in resources.nodes for memory in node.memory_resources]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Everything that a check may look at."""

    loaded: LoadedPlan
    manifest: Sequence[ManifestEntry] | None
    """The plan's tensor manifest, or ``None`` when it could not be had."""
    record: LoadedRecord
    view: View
    conditions: Conditions
    support: AdapterSupport | None
    """What the family can realize and execute, where an adapter's layout is at hand."""
    specs: Mapping[Form, tuple[TensorSpec, ...]] | None
    """Exact tensors of each planned form of a state, where an adapter's layout is at hand."""
    result_digest: str | None
    """Recomputed from the tables, or ``None`` with the problem."""
    result_problem: str

    @property
    def checks(self) -> frozenset[str]:
        """Ids of the checks that the plan declares."""
        declared = self.plan.checks
        both = () if declared is None else (*declared.acceptance, *declared.telemetry)
        return frozenset(check.id for check in both)

    @property
    def evicts(self) -> bool:
        """Whether ownership is judged, and the plan has a policy that lets go of positions."""
        return "state.ownership" in self.checks and self.plan.eviction_policy is not None

    @property
    def plan(self) -> Plan:
        """The plan's records."""
        return self.loaded.plan

    @property
    def predicate(self) -> RecordPredicate:
        """The record's predicate."""
        return self.record.predicate

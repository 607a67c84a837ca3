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
from harness.evidence.tables import table_place
from harness.plan.bind import bind
from harness.plan.binding import Binding
from harness.plan.check import AdapterSupport
from harness.plan.checks import NODE_CHECKS
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
_PER_STAGE = frozenset({"producer", "witness", "fixture"})
"""Who writes a table for each stage of a plan that has some."""


Place = tuple[str, int | None, int | None]
"""A table's name, its realization (``None``: record-wide) and its stage (``None``: of all)."""


def expected_tables(
    num_realizations: int, checks: Collection[str], num_stages: int | None = None
) -> list[Place]:
    """Every table that a complete record holds.

    Args:
        num_realizations: Fresh realizations that the plan asks for.
        checks: Ids of the checks that the plan declares.
        num_stages: Stages of the plan, each with tables of its own; ``None`` where it has none.
    """
    stages = (None,) if num_stages is None else tuple(range(num_stages))
    expected: list[Place] = []
    for table in TABLES.values():
        if table.check is not None and table.check not in checks:
            continue
        of = stages if table.writer in _PER_STAGE else (None,)
        if table.writer in _PER_REALIZATION:
            expected.extend((table.name, n, stage) for n in range(num_realizations) for stage in of)
        elif table.writer in _WHOLE_RECORD:
            expected.extend((table.name, None, stage) for stage in of)
    return expected


def table_path(name: str, realization: int | None, stage: int | None = None) -> str:
    """The place of one table, such as ``tables/steps/r0``, or ``tables/steps/r0/s1`` of a stage."""
    return f"tables/{table_place(name, realization, stage)}"


class View:
    """Reads each table of one record once: of all processes, or of one stage's."""

    def __init__(
        self,
        record: LoadedRecord,
        num_realizations: int,
        stages: Sequence[int | None] = (None,),
    ) -> None:
        """Look at a record.

        Args:
            record: The record.
            num_realizations: Fresh realizations that its plan asks for.
            stages: The stages whose tables are read; ``None`` where the plan has none.
        """
        self._record = record
        self.num_realizations = num_realizations
        self.stages = tuple(stages)
        self._read: dict[Place, KeyedRows | str] = {}

    def of_stage(self, number: int) -> "View":
        """What one stage's processes wrote; a table is read once for both."""
        part = View(self._record, self.num_realizations, (number,))
        part._read = self._read
        return part

    def table(
        self,
        findings: Findings,
        name: str,
        realization: int | None = None,
        stage: int | None = None,
    ) -> KeyedRows | None:
        """Rows of one table by key, or ``None`` after saying why there are none.

        A stage need not be named where one alone is looked at.
        """
        place = self._place(name, realization, stage)
        where = table_path(*place)
        found = self._load(place)
        if isinstance(found, str):
            findings.differ(where, "a readable table", found)
            return None
        for key in sorted(found.repeated, key=repr):
            findings.differ(found.path(key), "one row", "several rows with this key")
        return found

    def each(self, findings: Findings, name: str) -> Iterator[tuple[int, KeyedRows]]:
        """The table of every realization, and of every stage in it, that can be read."""
        for realization in range(self.num_realizations):
            for stage in self.stages:
                found = self.table(findings, name, realization, stage)
                if found is not None:
                    yield realization, found

    def rows(
        self, name: str, realization: int | None = None, stage: int | None = None
    ) -> list[Row] | None:
        """Rows of one table, or ``None`` when it cannot be read."""
        found = self._load(self._place(name, realization, stage))
        return None if isinstance(found, str) else list(found.rows.values())

    def _place(self, name: str, realization: int | None, stage: int | None) -> Place:
        if TABLES[name].writer not in _PER_STAGE:
            return name, realization, None
        if stage is None and len(self.stages) == 1:
            stage = self.stages[0]
        return name, realization, stage

    def _load(self, place: Place) -> KeyedRows | str:
        if place not in self._read:
            try:
                rows: Sequence[Row] = self._record.rows(*place)
                self._read[place] = KeyedRows(table_path(*place), TABLES[place[0]].key, rows)
            except HarnessError as error:
                self._read[place] = str(error)
        return self._read[place]


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
    parts: tuple["Subject", ...] = ()
    """The same of each stage by itself, where the plan has stages."""

    @property
    def is_part(self) -> bool:
        """Whether it is one stage of a plan that has several."""
        return self.view.stages != (None,) and not self.parts

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is a stage on another machine than the first, whose clock is its own."""
        is_first = self.view.stages[0] in (None, 0)
        return self.is_part and not is_first and NODE_CHECKS.keys() <= self.checks

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

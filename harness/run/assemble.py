"""Assembles the one statement of a run from the tables that its children wrote.

Every figure here is a sum over rows, and the auditor computes it again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import EvidenceError
from harness.evidence import tables
from harness.evidence.predicates import PLANTED_FAULT
from harness.evidence.redact import redact_command
from harness.evidence.source import source_identity
from harness.evidence.statement import (
    ApplicabilityKey,
    BindingReference,
    Claim,
    FixtureReference,
    ModelReference,
    PlanReference,
    RecordPredicate,
    SourceIdentity,
    record_statement,
)
from harness.evidence.store import Store
from harness.evidence.tables import WrittenTable
from harness.measure.clock import utc_timestamp
from harness.measure.words import BLIND_SPOTS
from harness.plan.binding import Binding
from harness.plan.environment import Environment, environment_document
from harness.plan.load import LoadedPlan
from harness.plan.recipe import recipe_digest
from harness.plan.records import REPLAYED_STEPS
from harness.reconcile.result import Tables, result_digest
from harness.run.processes import Outcome

Rows = list[dict[str, Any]]
KINDS = ("private_anonymous_bytes", "shared_anonymous_bytes", "memfd_bytes")
CLAIMS = tuple(
    Claim(name="memory.blind_spot", label="not_evaluated", detail=spot) for spot in BLIND_SPOTS
)
"""What a reader could take for shown, and cannot be seen."""


@dataclass(kw_only=True)
class Gathered:
    """Tables taken into the store, and their rows by name and realization."""

    written: list[WrittenTable] = field(default_factory=list)
    rows: dict[str, dict[int | None, Rows]] = field(default_factory=dict)
    """Where a plan has stages, those of one after the other."""
    stages: dict[int | None, dict[str, dict[int | None, Rows]]] = field(default_factory=dict)
    """The same of each stage by itself; all of it under ``None`` where there are none."""
    totals: dict[str, Any] = field(default_factory=dict)
    """The statement's sums over the rows."""

    @property
    def processes(self) -> list[dict[str, dict[int | None, Rows]]]:
        """Rows of each stage, in order; where there are none, all rows once."""
        numbers = sorted(number for number in self.stages if number is not None)
        return [self.stages[number] for number in numbers] or [self.rows]


@dataclass(frozen=True, kw_only=True)
class TableFolder:
    """Where one child wrote its tables, and what they are about."""

    path: Path
    realization: int | None = None
    stage: int | None = None


def gather(
    store: Store,
    folder: Path,
    realization: int | None,
    gathered: Gathered,
    stage: int | None = None,
) -> None:
    """Take every finished table of one child into the store."""
    for path in sorted(folder.glob("*.parquet")) if folder.is_dir() else ():
        name = path.stem
        data = path.read_bytes()
        rows = tables.decode(name, data, where=str(path))
        gathered.written.append(
            WrittenTable(
                name=name,
                realization=realization,
                digest=store.put_table(data),
                num_rows=len(rows),
                size_bytes=len(data),
                stage=stage,
            )
        )
        gathered.rows.setdefault(name, {}).setdefault(realization, []).extend(rows)
        own = gathered.stages.setdefault(stage, {})
        own.setdefault(name, {})[realization] = rows


def applicability_key(facts: Iterable[Rows]) -> ApplicabilityKey | None:
    """The key that all producers measured; ``None`` when there is none, or they disagree."""
    keys = []
    for rows in facts:
        values = {row["name"]: row["value"] for row in rows}
        try:
            keys.append(
                ApplicabilityKey(
                    device_class=values["device_class"],
                    instruction_set=values["instruction_set"],
                    torch_build=values["torch_build"],
                    num_threads=int(values["num_threads"]),
                    dtype=values["dtype"],
                    kernel_set=values["kernel_set"],
                    geometry=values["geometry"],
                )
            )
        except (KeyError, ValueError):
            return None
    return keys[0] if keys and all(key == keys[0] for key in keys) else None


def totals(plan: LoadedPlan, gathered: Gathered) -> dict[str, Any]:
    """Summaries over plan and rows: bytes per memory, and the number of steps."""
    rows = gathered.rows
    planned: Counter[str] = Counter()
    for intent in plan.plan.materializations:
        if intent.requirement == "required" and intent.persistence == "persistent":
            planned[intent.memory_resource_id] += intent.expected_bytes
    observed: dict[str, int] = {}
    for listed in rows.get("materializations", {}).values():
        live: Counter[str] = Counter()
        for row in listed:
            if row["lifecycle"] == "live" and row["memory_resource_id"] is not None:
                live[row["memory_resource_id"]] += row["requested_bytes"]
        for memory, total in live.items():
            observed[memory] = max(observed.get(memory, 0), total)
    return {
        "planned_bytes": dict(sorted(planned.items())),
        "observed_bytes": dict(sorted(observed.items())),
        "num_steps": sum(len(listed) for listed in rows.get("steps", {}).values()),
    } | _smallest_visible(plan, gathered)


def _smallest_visible(plan: LoadedPlan, gathered: Gathered) -> dict[str, int]:
    """The smallest copy that every reading after population would have shown, in bytes."""
    allowances = plan.plan.memory_allowances
    if allowances is None:
        return {}
    found = []
    for listed in _of_each_process(gathered, "checkpoints"):
        baseline = next((row for row in listed if row["point"] == "baseline"), None)
        for row in listed:
            if row["point"] in ("after_population", "after_release", "after_decode"):
                # Pages given back since the baseline would hide as many of a copy.
                shrunk = sum(max(0, baseline[k] - row[k]) for k in KINDS) if baseline else 0
                found.append(allowances.unplanned_host_bytes + 1 - row["unplanned_bytes"] + shrunk)
    return {"smallest_visible_mirror_bytes": max(0, *found)} if found else {}


def _of_each_process(gathered: Gathered, name: str) -> list[Rows]:
    """A table's rows, one list for each producer that wrote one."""
    return [rows for own in gathered.processes for rows in own.get(name, {}).values()]


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """Everything a statement is assembled from."""

    experiment: str
    loaded: LoadedPlan
    plan_bytes: bytes
    manifest_bytes: bytes | None
    binding: Binding
    environment: Environment
    folders: Sequence[TableFolder]
    outcomes: Sequence[Outcome]
    package_root: Path
    command: Sequence[str]
    started_at: str
    planted_fault: str | None = None


def assemble(store: Store, work: Path, assembly: Assembly) -> tuple[str, Gathered]:
    """Write the record of a run; returns its digest and the rows it was made from.

    Raises:
        EvidenceError: When the statement would exceed its size limit.
    """
    gathered = Gathered()
    tables.write(work, "trials", [outcome.row() for outcome in assembly.outcomes])
    for folder in (*assembly.folders, TableFolder(path=work)):
        gather(store, folder.path, folder.realization, gathered, folder.stage)
    plan = assembly.loaded.plan
    plan_file = store.put_plan(assembly.plan_bytes)
    manifest = (
        None if assembly.manifest_bytes is None else store.put_manifest(assembly.manifest_bytes)
    )
    gathered.totals = totals(assembly.loaded, gathered)
    key = applicability_key(_of_each_process(gathered, "facts"))
    predicate = RecordPredicate(
        experiment=assembly.experiment,
        plan=PlanReference(
            digest=plan.digest,
            file_digest=plan_file,
            schema=plan.schema,
            plan_version=plan.plan_version,
            model=ModelReference(repository=plan.model_repository, revision=plan.model_revision),
        ),
        manifest_digest=manifest,
        binding=BindingReference(
            compute_units=dict(assembly.binding.compute_units),
            memories=dict(assembly.binding.memories),
        ),
        environment=environment_document(assembly.environment),
        applicability_key=key,
        fixture=_fixture(assembly.loaded, gathered.written),
        source=source_of(assembly.package_root),
        tables=tuple(gathered.written),
        totals=gathered.totals,
        claims=(
            *_cuda(assembly),
            _graph(assembly, gathered.rows.get("facts", {})),
            *_planted(assembly),
            *CLAIMS,
        ),
        command=tuple(redact_command(assembly.command)),
        started_at=assembly.started_at,
        ended_at=utc_timestamp(),
        result_digest=_result(assembly.loaded, key, gathered),
    )
    return store.put_record(record_statement(predicate)), gathered


def source_of(root: Path) -> SourceIdentity:
    """Which code made the record, as git and the files themselves tell."""
    found = source_identity(root)
    dirty = found["dirty"]
    return SourceIdentity(
        dirty=None if dirty is None else bool(dirty),
        **{
            name: None if found[name] is None else str(found[name])
            for name in ("git_commit", "git_tree", "diff_digest", "package_digest")
        },
    )


def _cuda(assembly: Assembly) -> tuple[Claim, ...]:
    """Whether a GPU took part follows from what the plan was bound to."""
    bound = _bound_kinds(assembly)
    if "cuda-gpu" in bound:
        return ()
    detail = f"bound to {', '.join(sorted(bound))}; no CUDA device took part"
    return (Claim(name="cuda", label="not_executed", detail=detail),)


def _graph(assembly: Assembly, facts: Mapping[int | None, Rows]) -> Claim:
    """Whether graphs of a GPU were replayed: by what each realization counted, on what it ran."""
    counted = [
        int(row["value"])
        for rows in facts.values()
        for row in rows
        if row["name"] == REPLAYED_STEPS
    ]
    if "cuda-gpu" in _bound_kinds(assembly) and counted and min(counted) > 0:
        detail = f"{sum(counted)} decode steps were replayed from graphs"
        return Claim(name="cuda_graph", label="measured", detail=detail)
    detail = "no CUDA graph was captured or replayed"
    return Claim(name="cuda_graph", label="not_executed", detail=detail)


def _bound_kinds(assembly: Assembly) -> set[str]:
    kinds = {
        unit.id: unit.kind
        for node in assembly.environment.resources.nodes
        for unit in node.compute_units
    }
    return {kinds[real] for real in assembly.binding.compute_units.values()}


def _planted(assembly: Assembly) -> tuple[Claim, ...]:
    fault = assembly.planted_fault
    return () if fault is None else (Claim(name=PLANTED_FAULT, label="declared", detail=fault),)


def _fixture(loaded: LoadedPlan, written: Sequence[WrittenTable]) -> FixtureReference | None:
    outputs = [table.digest for table in written if table.name == "fixture_outputs"]
    if not outputs:
        return None
    # Of stages the last one's: there are the planes, logits and tokens of the whole range.
    return FixtureReference(recipe_digest=recipe_digest(loaded.document), digest=outputs[-1])


def _result(loaded: LoadedPlan, key: ApplicabilityKey | None, gathered: Gathered) -> str | None:
    if key is None:
        return None
    try:
        return result_digest(loaded, vars(key), gathered.rows, _stages(loaded, gathered))
    except (EvidenceError, KeyError):
        # An aborted run has no result; the auditor says which tables are missing.
        return None


def _stages(loaded: LoadedPlan, gathered: Gathered) -> Mapping[int | None, Tables] | None:
    return None if loaded.plan.stages is None else gathered.stages

"""The generic realizer: planned materializations into arenas, in order, and staging out again.

    staging allocated and filled -> persistent allocated -> persistent filled -> observed
        -> staging released, where an observed final residency authorizes it -> executions

It decides order, status and release. It knows no model and no representation by meaning; what a
planned copy *is* is measured by :mod:`harness.realize.observe`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.errors import ResourceError
from harness.plan.layout import Form, TensorSpec
from harness.plan.records import Execution, Materialization, Plan
from harness.realize.adapter import Adapter, Executor, Realized, TensorSource
from harness.realize.observe import (
    ABSENT,
    FAILED,
    NOT_AUTHORIZED,
    NOT_REALIZED,
    REALIZED,
    RELEASE_INCOMPLETE,
    RELEASED,
    Record,
    differences,
    observe,
    qualifying_ids,
)
from harness.state.arena import Arena, Memory

Checkpoint = Callable[[str], None]
"""Called with the name of each lifecycle point as it is reached."""


@dataclass(frozen=True, kw_only=True)
class Activation:
    """One execution and the executor that runs it, or why there is none."""

    execution: Execution
    executor: Executor | None
    detail: str | None


class Realizer:
    """Realizes one plan with one adapter into the given memories."""

    def __init__(
        self,
        plan: Plan,
        adapter: Adapter,
        memories: Mapping[str, Memory],
        known: Mapping[Form, Sequence[TensorSpec]],
        source: TensorSource,
        on_point: Checkpoint,
    ) -> None:
        self._plan = plan
        self._adapter = adapter
        self._memories = memories
        self._known = known
        self._source = source
        self._on_point = on_point
        self._realized: dict[str, Realized] = {}
        self._failures: dict[str, str] = {}
        self.records: dict[str, Record] = {}

    def realize(self, fill_derived: Callable[[Mapping[str, Arena]], None]) -> None:
        """Realize every materialization in plan order, then release what may be released.

        Args:
            fill_derived: Fills the derived arenas that no adapter fills (reference outputs), by
                materialization id; called with the live arenas.
        """
        wanted = [
            intent
            for intent in self._plan.materializations
            if intent.requirement == "required" or intent.realize
        ]
        staging = [intent for intent in wanted if intent.persistence == "transient"]
        persistent = [intent for intent in wanted if intent.persistence == "persistent"]
        for intent in staging:
            self._attempt(intent, self._allocate)
            self._attempt(intent, self._populate)
        self._on_point("after_staging")
        for intent in persistent:
            self._attempt(intent, self._allocate)
        self._on_point("after_allocation")
        for intent in persistent:
            self._attempt(intent, self._populate)
        fill_derived(self.arenas())
        for intent in self._plan.materializations:
            self.records[intent.id] = self._observe(intent, is_wanted=intent in wanted)
        self._on_point("after_population")
        for intent in staging:
            self._release(intent)
        self._on_point("after_release")

    def arenas(self) -> dict[str, Arena]:
        """Live arenas by materialization id, in plan order."""
        return {
            intent.id: self._realized[intent.id].arena
            for intent in self._plan.materializations
            if intent.id in self._realized and self._realized[intent.id].arena.is_mapped
        }

    def staging_arenas(self) -> list[Arena]:
        """Arenas of staging, released or not."""
        return [
            self._realized[intent.id].arena
            for intent in self._plan.materializations
            if intent.persistence == "transient" and intent.id in self._realized
        ]

    def lineages(self) -> list[tuple[str, str, str]]:
        """(logical state, materialization, lineage) as minted by each owner at realization."""
        return [
            (realized.logical_state_id, identifier, realized.lineage)
            for identifier, realized in self._realized.items()
            if realized.lineage is not None
        ]

    def activate(self) -> list[Activation]:
        """Activate each execution whose required state is there."""
        return [self._activate(execution) for execution in self._plan.execution]

    def observe_again(self) -> None:
        """Measure every live materialization anew; a changed one loses its status."""
        for identifier, record in self.records.items():
            if record.lifecycle != "live":
                continue
            now = observe(
                record.intent, self._realized.get(identifier), self._memories, self._known
            )
            wrong = differences(record.intent, now)
            status = FAILED if wrong and record.status == REALIZED else record.status
            detail = "; ".join(wrong) if wrong else record.detail
            self.records[identifier] = replace(
                record, observation=now, status=status, detail=detail
            )

    def _attempt(self, intent: Materialization, action: Callable[[Materialization], None]) -> None:
        if intent.id in self._failures:
            return
        try:
            action(intent)
        except ResourceError:
            raise
        except Exception as error:  # an adapter's failure is a recorded status, not a crash
            self._failures[intent.id] = f"{type(error).__name__}: {error}"

    def _allocate(self, intent: Materialization) -> None:
        self._realized[intent.id] = self._adapter.allocate(intent)

    def _populate(self, intent: Materialization) -> None:
        self._adapter.populate(intent, self._source)

    def _observe(self, intent: Materialization, *, is_wanted: bool) -> Record:
        if not is_wanted:
            return Record(
                intent=intent, status=NOT_REALIZED, lifecycle="absent", observation=ABSENT
            )
        observation = observe(intent, self._realized.get(intent.id), self._memories, self._known)
        problems = differences(intent, observation)
        if intent.id in self._failures:
            problems.insert(0, self._failures[intent.id])
        return Record(
            intent=intent,
            status=FAILED if problems else REALIZED,
            lifecycle="live" if observation.is_live else "absent",
            observation=observation,
            detail="; ".join(problems) or None,
        )

    def _release(self, intent: Materialization) -> None:
        record = self.records[intent.id]
        if record.lifecycle == "absent":
            return
        qualifying = qualifying_ids(record, self.records.values())
        missing = [
            f"{identifier}: {slot} is not populated"
            for identifier in qualifying
            for slot in self._adapter.unpopulated(self.records[identifier].intent)
        ]
        if not qualifying or missing:
            reasons = [*missing] or ["no final residency of this state was observed as planned"]
            if record.detail:
                reasons.insert(0, record.detail)
            self.records[intent.id] = replace(
                record, status=NOT_AUTHORIZED, detail="; ".join(reasons)
            )
            return
        arena = self._realized[intent.id].arena
        before = arena.requested_bytes
        self._adapter.release(intent)
        still_mapped = arena.release()
        self.records[intent.id] = replace(
            record,
            status=RELEASE_INCOMPLETE if still_mapped else RELEASED,
            lifecycle="live" if still_mapped else "released",
            observation=replace(
                record.observation,
                is_live=arena.is_mapped,
                allocated_bytes=still_mapped,
                requested_bytes=arena.requested_bytes,
            ),
            bytes_before_release=before,
            # The tensors lie in the mapping: as long as it is there, so are their bytes.
            bytes_after_release=before if still_mapped else 0,
            qualifying_ids=qualifying,
            detail="something still refers to the mapping" if still_mapped else None,
        )

    def _activate(self, execution: Execution) -> Activation:
        live = {
            (
                record.observation.logical_state_id,
                record.observation.representation,
                record.observation.memory_resource_id,
            )
            for record in self.records.values()
            if record.status == REALIZED and record.lifecycle == "live"
        }
        missing = [
            required.logical_state_id
            for required in execution.required_state
            if not any(
                (required.logical_state_id, representation, memory) in live
                for representation in required.representations
                for memory in required.memory_resources
            )
        ]
        if missing:
            detail = f"required state is not realized: {', '.join(missing)}"
            return Activation(execution=execution, executor=None, detail=detail)
        return Activation(
            execution=execution, executor=self._adapter.activate(execution), detail=None
        )

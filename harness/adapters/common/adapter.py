"""Realization of state, as it is the same in every family: arenas, staging, streaming, population.

Whole staging reads every key into its own tensor first; streaming reads one tensor after another
round a window; without staging a tensor is read straight into its rows where the forms are equal.
Where they differ, and nothing is staged, one buffer of the largest such tensor is taken from the
resident's own memory, counted there, and given back before population ends. Several tensors are
read at a time. What the tensors mean, and what runs over them, a family's own subclass says.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import ClassVar

import torch

from harness.adapters.common.ahead import Placed, read_ahead
from harness.adapters.common.bank import ResidentBank
from harness.adapters.common.layout import DECODE_BUFFERS, FamilyLayout
from harness.adapters.common.marks import is_unwritten
from harness.adapters.common.rows import ResidentTensor, needed_entries
from harness.adapters.common.stepping import RangeExecutor
from harness.errors import CheckpointError, NotEvaluableError, PlanError
from harness.plan.layout import (
    CHECKPOINT_NATIVE,
    CHECKPOINT_WINDOW,
    STATIC_BUFFERS,
    CensusEntry,
    LayoutRequest,
    TensorSpec,
)
from harness.plan.records import Execution, Materialization
from harness.realize.adapter import AdapterContext, Executor, Realized, TensorSource
from harness.state.arena import ALIGNMENT_BYTES, Arena
from harness.state.session import Session


class FamilyAdapter(ABC):
    """A family's :class:`harness.realize.adapter.Adapter`, but for what only it knows.

    One per realization.
    """

    layout: ClassVar[FamilyLayout]

    @abstractmethod
    def derived_state(self, state_id: str) -> Mapping[str, torch.Tensor]:
        """Freshly computed tensors of one derived state, by name."""

    @abstractmethod
    def make_session(
        self, state_id: str, epoch: int, tensors: Mapping[str, torch.Tensor]
    ) -> Session:
        """The owner of the mutable state, over its zeroed tensors."""

    @abstractmethod
    def make_executor(
        self,
        residents: Mapping[str, torch.Tensor],
        derived: Mapping[str, Mapping[str, torch.Tensor]],
        session: Session,
    ) -> RangeExecutor:
        """Something that runs over the resident tensors of all states and the owned state."""

    @property
    def request(self) -> LayoutRequest:
        """What is realized."""
        return self._context.request

    def begin(self, context: AdapterContext) -> None:
        """Remember the context; allocate nothing.

        Raises:
            NotEvaluableError: When the plan's kernel set, or what it asks of it, is not built.
        """
        determinism, built = context.request.determinism, self.layout.kernel_sets
        if determinism.kernel_set not in built:
            raise NotEvaluableError(
                "the plan's kernel set is not built here",
                expected=", ".join(sorted(built)),
                got=determinism.kernel_set,
                where="$.determinism.kernel_set",
                hint="run it with a build that has this set; another set has other bits",
            )
        if determinism.batch_invariant and not built[determinism.kernel_set]:
            raise NotEvaluableError(
                f"kernel set {determinism.kernel_set} is not batch invariant",
                where="$.determinism.batch_invariant",
            )
        self._context = context
        self._residents = self.layout.chosen_residents(context.request)
        self._arenas: dict[str, Arena] = {}
        self._by_form: dict[tuple[str, str], str] = {}
        self._banks: dict[str, ResidentBank] = {}
        self._filled: set[str] = set()
        self._staged_keys: set[str] = set()
        self._session: Session | None = None
        self._num_sessions = 0

    def allocate(self, intent: Materialization) -> Realized:
        """Map the arena of one materialization, zeroed; mutable state gets its owner here.

        Raises:
            PlanError: When the family has no such form of the state.
            ResourceError: When the memory is exhausted.
        """
        state_id, form = intent.logical_state_id, intent.representation
        specs = self.layout.tensors(self.request, state_id, form, self._context.census)
        arena = self._context.memories[intent.memory_resource_id].allocate(intent.id, specs)
        self._arenas[intent.id] = arena
        self._by_form[state_id, form] = intent.id
        lineage = None
        if self.layout.is_resident(form) or form in self.layout.bank_staging:
            config, spec = self.request.config, self.request.spec
            residents = self.layout.form_tensors(config, spec, state_id, form)
            self._banks[intent.id] = ResidentBank(residents, arena.tensors)
        if self.layout.is_mutable(form):
            self._num_sessions += 1
            self._session = self.make_session(state_id, self._num_sessions, arena.tensors)
            lineage = self._session.lineage
        return Realized(arena=arena, logical_state_id=state_id, lineage=lineage)

    def populate(self, intent: Materialization, source: TensorSource) -> None:
        """Fill an allocated materialization.

        Raises:
            CheckpointError: When a slot of the final residency still holds no data at the end.
        """
        if intent.representation == CHECKPOINT_NATIVE or intent.id in self._banks:
            self._arenas[intent.id].touch(self._context.team)
        if intent.representation == CHECKPOINT_NATIVE:
            self._stage(self._arenas[intent.id], source)
        elif intent.logical_state_id in self.layout.derived_forms:
            tables = self.derived_state(intent.logical_state_id)
            for name, tensor in self._arenas[intent.id].tensors.items():
                tensor.copy_(tables[name])
            self._filled.add(intent.id)
        elif intent.id in self._banks:
            self._fill(self._banks[intent.id], intent, source)
            missing = self._banks[intent.id].unpopulated()
            if missing:
                raise CheckpointError(
                    f"{len(missing)} slots hold no data after population",
                    got="; ".join(missing[:8]),
                    where=intent.id,
                )

    def unpopulated(self, intent: Materialization) -> Sequence[str]:
        """Slots that hold no data yet, by this adapter's own record and by their bytes."""
        bank = self._banks.get(intent.id)
        if bank is not None:
            return bank.unpopulated()
        if intent.logical_state_id in self.layout.derived_forms and intent.id not in self._filled:
            return tuple(self._arenas[intent.id].tensors)
        return ()

    def release(self, intent: Materialization) -> None:
        """Drop this adapter's references to a staging materialization's tensors."""
        arena = self._arenas.pop(intent.id, None)
        self._banks.pop(intent.id, None)
        self._by_form.pop((intent.logical_state_id, intent.representation), None)
        self._staged_keys -= set(arena.tensors) if arena is not None else set()

    def activate(self, execution: Execution) -> Executor:
        """Bind resident tensors and the owned state into something that runs.

        Raises:
            PlanError: When the execution or one of its states is not there.
        """
        if execution.strategy_unit not in self.layout.strategy_units:
            raise PlanError(
                "unknown execution",
                expected=", ".join(sorted(self.layout.strategy_units)),
                got=execution.strategy_unit,
                where=execution.id,
            )
        live = {
            state_id: self._arenas[identifier].tensors
            for (state_id, form), identifier in self._by_form.items()
            if self.layout.is_resident(form) or state_id in self.layout.derived_forms
        }
        wanted = set(self._residents)
        derived_ids = self.layout.derived_in(self.request).keys()
        missing = sorted((wanted | derived_ids) - live.keys())
        if missing or self._session is None:
            raise PlanError(
                "required state is not realized",
                got="missing: " + ", ".join([*missing, *(["session"] * (self._session is None))]),
                where=execution.id,
            )
        residents = {name: t for state_id in wanted for name, t in live[state_id].items()}
        derived = {state_id: live[state_id] for state_id in derived_ids}
        executor = self.make_executor(residents, derived, self._session)
        buffers = self._live(DECODE_BUFFERS, STATIC_BUFFERS)
        if buffers is not None:
            prompt = len(self.request.workload.prompt_token_ids)
            executor.record_decode(prompt, buffers.tensors, self._context.record)
        return executor

    def _stage(self, arena: Arena, source: TensorSource) -> None:
        with closing(read_ahead(source, arena.tensors.items())) as reads:
            for key, tensor in reads:
                if not is_unwritten(tensor):
                    self._staged_keys.add(key)

    def _live(self, state_id: str, form: str) -> Arena | None:
        return self._arenas.get(self._by_form.get((state_id, form), ""))

    def _staged_bank(self, state_id: str, bank: ResidentBank) -> ResidentBank | None:
        for form in sorted(self.layout.bank_staging):
            staged = self._banks.get(self._by_form.get((state_id, form), ""))
            if staged is not None and staged is not bank:
                return staged
        return None

    def _fill(self, bank: ResidentBank, intent: Materialization, source: TensorSource) -> None:
        state_id = intent.logical_state_id
        staged_bank = self._staged_bank(state_id, bank)
        if staged_bank is not None:
            bank.copy(staged_bank)
            return
        staged = self._live(state_id, CHECKPOINT_NATIVE)
        if staged is not None:
            for key in bank.keys:
                if key in self._staged_keys:
                    bank.fill(key, staged.tensors[key])
            return
        tensors: Sequence[ResidentTensor] = self._residents[state_id]
        entries = {entry.key: entry for entry in needed_entries(tensors, self._context.census)}
        window = self._live(state_id, CHECKPOINT_WINDOW)
        if window is not None:
            self._read(bank, window, entries, source)
            return
        others = {
            key: entry
            for key, entry in entries.items()
            if not bank.takes(key, entry.dtype, entry.shape)
        }
        if not others:
            self._read(bank, None, {}, source)
            return
        size = max(entry.source_bytes for entry in others.values())
        spec = TensorSpec(name="window", dtype="uint8", shape=(size,))
        memory = self._context.memories[intent.memory_resource_id]
        buffer = memory.allocate(f"{intent.id}.conversion", [spec])
        try:
            self._read(bank, buffer, others, source)
        finally:
            buffer.release()

    def _read(
        self,
        bank: ResidentBank,
        window: Arena | None,
        passing: Mapping[str, CensusEntry],
        source: TensorSource,
    ) -> None:
        """Read every tensor of a bank: those of ``passing`` through a window, others into rows."""
        if window is not None:
            window.touch(self._context.team, sum(map(_room, passing.values())))
        transfer = self._context.transfer
        wanted = _places(bank, window, passing)
        with closing(read_ahead(source, wanted, transfer.wait)) as reads:
            for key, tensor in reads:
                if key not in passing:
                    bank.complete(key)
                elif not is_unwritten(tensor):
                    with transfer.sending(key):
                        bank.fill(key, tensor)
        transfer.finish()


def _places(
    bank: ResidentBank, window: Arena | None, passing: Mapping[str, CensusEntry]
) -> Iterator[Placed]:
    """Where each tensor is read: one after another round a window, or into its rows."""
    begin = 0
    for key in bank.keys:
        if window is None or key not in passing:
            yield key, bank.place(key)
            continue
        entry, room = passing[key], window.tensors["window"]
        begin = begin if begin + entry.source_bytes <= len(room) else 0
        view = room[begin : begin + entry.source_bytes].view(getattr(torch, entry.dtype))
        begin += _room(entry)
        yield key, view.view(entry.shape)


def _room(entry: CensusEntry) -> int:
    """What a tensor takes of a window, the next one aligned."""
    return -(-entry.source_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

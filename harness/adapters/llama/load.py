"""Realization of the Llama family's state: arenas, staging, streaming, population.

Whole staging reads every key into its own tensor first; streaming reads one tensor at a time
through a window; without staging a tensor is read straight into its rows where the dtypes are
equal. Where they differ, and nothing is staged, one buffer of the largest such tensor is taken
from the resident's own memory, counted there, and given back before population ends.
"""

from collections.abc import Sequence

import torch

from harness.adapters.llama.bank import ResidentBank, is_unwritten, mark_unwritten
from harness.adapters.llama.config import LlamaConfig, read_config
from harness.adapters.llama.keys import needed_entries
from harness.adapters.llama.layout import CONTIGUOUS_KV, MERGED, ROPE_TABLE, LlamaLayout
from harness.adapters.llama.model import LlamaExecutor
from harness.adapters.llama.rope import rope_tables
from harness.errors import CheckpointError, NotEvaluableError, PlanError
from harness.plan.layout import (
    CHECKPOINT_NATIVE,
    CHECKPOINT_WINDOW,
    CensusEntry,
    TensorSpec,
)
from harness.plan.records import Execution, Materialization
from harness.realize.adapter import AdapterContext, Executor, Realized, TensorSource
from harness.state.arena import Arena
from harness.state.session import Session
from kernels.kernel_sets import UnknownKernelSetError
from kernels.linear.api import select


class LlamaAdapter:
    """The family's :class:`harness.realize.adapter.Adapter`; one per realization."""

    layout = LlamaLayout()

    def begin(self, context: AdapterContext) -> None:
        """Remember the context; allocate nothing.

        Raises:
            NotEvaluableError: When the plan's kernel set, or what it asks of it, is not built.
        """
        determinism = context.request.determinism
        try:
            select(determinism.kernel_set)
        except UnknownKernelSetError as error:
            raise NotEvaluableError(
                "the plan's kernel set is not built here",
                got=str(error),
                where="$.determinism.kernel_set",
                hint="run it with a build that has this set; another set has other bits",
            ) from error
        if determinism.batch_invariant:
            raise NotEvaluableError(
                f"kernel set {determinism.kernel_set} is not batch invariant",
                where="$.determinism.batch_invariant",
            )
        self._context = context
        self._config: LlamaConfig = read_config(context.request.config)
        self._arenas: dict[str, Arena] = {}
        self._by_form: dict[str, str] = {}
        self._banks: dict[str, ResidentBank] = {}
        self._filled: set[str] = set()
        self._staged_keys: set[str] = set()
        self._session: Session | None = None
        self._num_sessions = 0

    def allocate(self, intent: Materialization) -> Realized:
        """Map the arena of one materialization, zeroed; mutable state gets its owner here.

        Raises:
            PlanError: When the family has no such representation.
            ResourceError: When the memory is exhausted.
        """
        form = intent.representation
        # The owner knows what state a form is of; the plan's word on it is compared, not taken.
        state_id = self.layout.state_of(form)
        request = self._context.request
        specs = self.layout.tensors(request, form, self._context.census)
        arena = self._context.memories[intent.memory_resource_id].allocate(intent.id, specs)
        self._arenas[intent.id] = arena
        self._by_form[form] = intent.id
        lineage = None
        if form.startswith(MERGED):
            self._banks[intent.id] = ResidentBank(self._config, request.spec, arena.tensors)
        if form.startswith(CONTIGUOUS_KV):
            self._num_sessions += 1
            self._session = Session(
                logical_state_id=state_id,
                epoch=self._num_sessions,
                tensors=arena.tensors,
                capacity_positions=request.workload.max_positions,
            )
            lineage = self._session.lineage
        return Realized(arena=arena, logical_state_id=state_id, lineage=lineage)

    def populate(self, intent: Materialization, source: TensorSource) -> None:
        """Fill an allocated materialization.

        Raises:
            CheckpointError: When a slot of the final residency still holds no data at the end.
        """
        form = intent.representation
        if form == CHECKPOINT_NATIVE:
            self._stage(self._arenas[intent.id], source)
        elif form == ROPE_TABLE:
            tables = rope_tables(self._config, self._context.request.workload.max_positions)
            for name, tensor in self._arenas[intent.id].tensors.items():
                tensor.copy_(tables[name])
            self._filled.add(intent.id)
        elif form.startswith(MERGED):
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
        if intent.representation == ROPE_TABLE and intent.id not in self._filled:
            return ("cos", "sin")
        return ()

    def release(self, intent: Materialization) -> None:
        """Drop this adapter's references to a staging materialization's tensors."""
        self._arenas.pop(intent.id, None)
        self._by_form.pop(intent.representation, None)
        self._staged_keys.clear()

    def activate(self, execution: Execution) -> Executor:
        """Bind resident tensors and the owned cache into something that runs.

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
        request = self._context.request
        residents = self._live(MERGED + request.determinism.dtype)
        tables = self._live(ROPE_TABLE)
        if residents is None or tables is None or self._session is None:
            raise PlanError("required state is not realized", where=execution.id)
        return LlamaExecutor(
            config=self._config,
            spec=request.spec,
            kernel_set=request.determinism.kernel_set,
            residents=residents.tensors,
            rope_tables=tables.tensors,
            session=self._session,
        )

    def _live(self, form: str) -> Arena | None:
        return self._arenas.get(self._by_form.get(form, ""))

    def _stage(self, arena: Arena, source: TensorSource) -> None:
        for key, tensor in arena.tensors.items():
            mark_unwritten(tensor)
            source.read_into(key, tensor)
            if not is_unwritten(tensor):
                self._staged_keys.add(key)

    def _fill(self, bank: ResidentBank, intent: Materialization, source: TensorSource) -> None:
        staged, window = self._live(CHECKPOINT_NATIVE), self._live(CHECKPOINT_WINDOW)
        if staged is not None:
            for key in bank.keys:
                if key in self._staged_keys:
                    bank.fill(key, staged.tensors[key])
            return
        request = self._context.request
        census = needed_entries(self._config, request.spec, self._context.census)
        entries = {entry.key: entry for entry in census}
        if window is not None:
            for key in bank.keys:
                _stream(bank, entries[key], window.tensors["window"], source)
            return
        others = [entry for entry in census if entry.dtype != bank.dtype]
        buffer = None
        if others:
            size = max(entry.source_bytes for entry in others)
            spec = TensorSpec(name="buffer", dtype="uint8", shape=(size,))
            memory = self._context.memories[intent.memory_resource_id]
            buffer = memory.allocate(f"{intent.id}.conversion", [spec])
        try:
            for key in bank.keys:
                if buffer is not None and entries[key].dtype != bank.dtype:
                    _stream(bank, entries[key], buffer.tensors["buffer"], source)
                else:
                    bank.read(key, source)
        finally:
            if buffer is not None:
                buffer.release()


def _stream(
    bank: ResidentBank, entry: CensusEntry, window: torch.Tensor, source: TensorSource
) -> None:
    """Read one tensor into the front of ``window`` and cast it from there into its rows."""
    view = window[: entry.source_bytes].view(getattr(torch, entry.dtype)).view(entry.shape)
    mark_unwritten(view)
    source.read_into(entry.key, view)
    if not is_unwritten(view):
        bank.fill(entry.key, view)

"""Run the whole workload's shapes once on throwaway state, so that the baseline is a steady one.

Libraries allocate on first use (thread stacks, packing buffers, primitive caches). Paying that
before the baseline keeps it out of what is later called unplanned. Everything here is released
again; nothing of it is recorded.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from harness.plan.layout import REFERENCE_OUTPUTS, STATE_SNAPSHOT
from harness.plan.records import Plan
from harness.realize.adapter import Adapter, AdapterContext, Executor
from harness.realize.decode import ExecutionLoop, OwnSteps, Steps
from harness.realize.recorder import StepRecorder
from harness.realize.schedule import Schedule
from harness.state.arena import Arena
from harness.state.recording import rehearsing

WARM_DECODE_STEPS = 2


class Zeros:
    """A source of tensors that hold nothing but zeros."""

    def begin(self, key: str, target: torch.Tensor) -> Callable[[], None]:
        """Zero ``target``."""
        del key
        target.zero_()
        return lambda: None


def warm_up(
    plan: Plan,
    make_adapter: Callable[[], Adapter],
    context: AdapterContext,
    schedule: Schedule,
    *,
    populate: bool = False,
    steps_of: Callable[[Executor], Steps] = OwnSteps,
) -> None:
    """Allocate every persistent copy, zeroed; run all chunks and a few decodes; release.

    Args:
        plan: What will be realized.
        make_adapter: Makes the throwaway adapter.
        context: That of the realization to come.
        schedule: That of the run to come.
        populate: Whether to stage and fill zeros first, too: on a device each of the copies and
            checks loads code of its own.
        steps_of: How an executor runs the steps, where it does not run them by itself.

    Raises:
        RuntimeError: When something keeps a throwaway mapping, which would spoil the baseline.
    """
    throwaway = {name: memory.throwaway() for name, memory in context.memories.items()}
    adapter = make_adapter()
    record = rehearsing(context.record)
    adapter.begin(replace(context, memories=throwaway, record=record))
    arenas = _realize(plan, adapter, populate=populate)
    _run(plan, adapter, arenas, schedule, steps_of)
    del adapter
    kept = sorted(identifier for identifier, arena in arenas.items() if arena.release())
    if kept:
        raise RuntimeError(f"throwaway state is still referred to: {', '.join(kept)}")


def _realize(plan: Plan, adapter: Adapter, *, populate: bool) -> dict[str, Arena]:
    """Throwaway arenas by id, staging included where it was filled."""
    required = [intent for intent in plan.materializations if intent.requirement == "required"]
    staging = [each for each in required if populate and each.persistence == "transient"]
    persistent = [each for each in required if each.persistence == "persistent"]
    arenas = {}
    for intent in staging:
        arenas[intent.id] = adapter.allocate(intent).arena
        adapter.populate(intent, Zeros())
    arenas |= {intent.id: adapter.allocate(intent).arena for intent in persistent}
    for intent in persistent if populate else ():
        adapter.populate(intent, Zeros())
    for intent in staging:
        adapter.release(intent)
    return arenas


def _run(
    plan: Plan,
    adapter: Adapter,
    arenas: Mapping[str, Arena],
    schedule: Schedule,
    steps_of: Callable[[Executor], Steps],
) -> None:
    by_form = {
        intent.representation: arenas[intent.id]
        for intent in plan.materializations
        if intent.persistence == "persistent" and intent.id in arenas
    }
    references = by_form.get(REFERENCE_OUTPUTS)
    short = replace(
        schedule,
        decode_steps=min(WARM_DECODE_STEPS, schedule.decode_steps),
        repetitions=min(1, schedule.repetitions),
    )
    for execution in plan.execution:
        recorder = StepRecorder(None if references is None else references.tensors)
        executor, snapshot = adapter.activate(execution), by_form[STATE_SNAPSHOT].tensors
        ExecutionLoop(executor, snapshot, recorder, steps_of(executor)).run(short)

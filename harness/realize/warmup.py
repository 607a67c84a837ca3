"""Run the whole workload's shapes once on throwaway state, so that the baseline is a steady one.

Libraries allocate on first use (thread stacks, packing buffers, primitive caches). Paying that
before the baseline keeps it out of what is later called unplanned. Everything here is released
again; nothing of it is recorded.
"""

from collections.abc import Callable
from dataclasses import replace

from harness.plan.layout import REFERENCE_OUTPUTS, STATE_SNAPSHOT
from harness.plan.records import Plan
from harness.realize.adapter import Adapter, AdapterContext
from harness.realize.decode import ExecutionLoop
from harness.realize.recorder import StepRecorder
from harness.realize.schedule import Schedule
from harness.state.arena import Arena

WARM_DECODE_STEPS = 2


def warm_up(
    plan: Plan, make_adapter: Callable[[], Adapter], context: AdapterContext, schedule: Schedule
) -> None:
    """Allocate every persistent copy, zeroed; run all chunks and a few decodes; release.

    Raises:
        RuntimeError: When something keeps a throwaway mapping, which would spoil the baseline.
    """
    throwaway = {name: memory.throwaway() for name, memory in context.memories.items()}
    arenas = _run(plan, make_adapter(), replace(context, memories=throwaway), schedule)
    kept = sorted(identifier for identifier, arena in arenas.items() if arena.release())
    if kept:
        raise RuntimeError(f"throwaway state is still referred to: {', '.join(kept)}")


def _run(
    plan: Plan, adapter: Adapter, context: AdapterContext, schedule: Schedule
) -> dict[str, Arena]:
    adapter.begin(context)
    persistent = [
        intent
        for intent in plan.materializations
        if intent.persistence == "persistent" and intent.requirement == "required"
    ]
    arenas = {intent.id: adapter.allocate(intent).arena for intent in persistent}
    by_form = {intent.representation: arenas[intent.id] for intent in persistent}
    references = by_form.get(REFERENCE_OUTPUTS)
    short = replace(
        schedule,
        decode_steps=min(WARM_DECODE_STEPS, schedule.decode_steps),
        repetitions=min(1, schedule.repetitions),
    )
    for execution in plan.execution:
        recorder = StepRecorder(None if references is None else references.tensors)
        ExecutionLoop(adapter.activate(execution), by_form[STATE_SNAPSHOT].tensors, recorder).run(
            short
        )
    return arenas

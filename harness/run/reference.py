"""Reference outputs of a plan's recipe, made by an ordinary, unselective load in one process.

Shares the forward code with the producer and nothing of its realization: every file is loaded
whole, no arena, no staging, no bounded reader. Also the expected digest of each resident tensor,
from its own transform of the checkpoint's bytes. Knows no cache and no process.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from harness.adapters.families import Reference, layout_for, reference_for
from harness.evidence import tables
from harness.plan.layout import LayoutRequest
from harness.plan.recipe import FIXTURE_FILE
from harness.plan.records import Plan
from harness.plan.request import layout_request
from harness.plan.stages import stage_range
from harness.realize.recorder import ReferenceRows
from harness.realize.schedule import Schedule, schedule_of
from harness.run.child import say
from harness.run.conditions import apply_determinism
from harness.run.control import Control, Part
from harness.run.devices import bound_device, exhaustion_told
from harness.run.job import Job
from harness.state.digests import tensor_digest

Row = dict[str, object]


@exhaustion_told()
def make_reference(plan: Plan, job: Job, folder: Path) -> None:
    """Load the checkpoint, run the workload once, and write outputs and digests to ``folder``."""
    request = layout_request(plan)
    apply_determinism(request.determinism)
    device, maker = bound_device(plan, job).device, reference_for(plan.adapter_data.family or "")

    def ordinary(part: LayoutRequest) -> Reference:
        # Whatever the load makes, it makes on this device.
        with device:
            return maker.ordinary(job.checkpoint, part)

    say("ordinary load")
    if plan.stages is None:
        reference = ordinary(request)
        write_expected(folder, reference)
        parts: Sequence[Part] = (Part(folder=folder, spec=request.spec),)
    else:
        parts = stage_parts(plan, request, ordinary, folder)
        reference = ordinary(request)
    say("reference outputs")
    schedule = schedule_of(request.workload, request.spec)
    names = layout_for(plan.adapter_data.family or "").boundaries(request.config, request.spec)
    control = Control(reference.executor, parts, names)
    control.run(schedule)
    for part in parts:
        has_head = part.spec.owns_final_norm_head
        own = replace(schedule, has_head=has_head)
        save_file(control.outputs[part.spec], part.folder / FIXTURE_FILE)
        rows = output_rows(control.outputs[part.spec], control.tokens if has_head else {}, own)
        tables.write(part.folder, "fixture_outputs", rows)
        tables.write(part.folder, "fixture_states", control.states[part.spec])


def write_expected(folder: Path, reference: Reference) -> None:
    """Write the digests that resident tensors must have."""
    folder.mkdir(parents=True, exist_ok=True)
    tables.write(folder, "expected_tensors", expected_rows(reference))


def stage_parts(
    plan: Plan,
    request: LayoutRequest,
    ordinary: Callable[[LayoutRequest], Reference],
    folder: Path,
) -> tuple[Part, ...]:
    """Load each stage's range by itself, one after another, for its tensors and empty state."""
    found = []
    for number, stage in enumerate(plan.stages or ()):
        spec = stage_range(plan, number)
        reference = ordinary(replace(request, spec=spec))
        write_expected(folder / stage.id, reference)
        reference.executor.reset()
        state = reference.executor.declared_state()
        empty = {name: tensor.clone() for name, tensor in state.items()}
        found.append(Part(folder=folder / stage.id, spec=spec, empty_state=empty))
    return tuple(found)


def output_rows(
    outputs: dict[str, torch.Tensor], tokens: dict[tuple[str, int], int], schedule: Schedule
) -> list[Row]:
    """Rows of ``fixture_outputs``: one per step and output, cut as the steps are."""
    rows: list[Row] = []
    reference = ReferenceRows(outputs)
    steps = [
        ("prefill", chunk.index, chunk.start_position, len(chunk.token_ids), chunk.is_last)
        for chunk in schedule.chunks
    ]
    steps += [
        ("decode", step, schedule.prompt_rows + step, 1, True)
        for step in range(schedule.decode_steps)
    ]
    for phase, step, start_position, num_rows, is_last in steps:
        for output in ("plane", "logits") if is_last and schedule.has_head else ("plane",):
            piece = reference.rows(output, phase, step, start_position, num_rows)
            rows.append(
                {
                    "phase": phase,
                    "step": step,
                    "output": output,
                    "dtype": str(piece.dtype).removeprefix("torch."),
                    "shape": list(piece.shape),
                    "bytes": piece.nbytes,
                    "digest": tensor_digest(piece),
                    "token": tokens.get((phase, step)),
                }
            )
    return rows


def expected_rows(reference: Reference) -> list[Row]:
    """Rows of ``expected_tensors``: what each resident tensor must be, bit for bit."""
    return [
        {
            "representation": representation,
            "name": name,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "bytes": tensor.nbytes,
            "digest": tensor_digest(tensor),
        }
        for representation, tensors in reference.residents.items()
        for name, tensor in tensors.items()
    ]

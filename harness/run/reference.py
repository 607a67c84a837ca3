"""Reference outputs of a plan's recipe, made by an ordinary, unselective load.

Shares the forward code with the producer and nothing of its realization: every file is loaded
whole, no arena, no staging, no bounded reader. Also the expected digest of each resident tensor,
from its own transform of the checkpoint's bytes. Knows no cache and no process.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from harness.adapters.families import Reference, reference_for
from harness.evidence import tables
from harness.plan.recipe import FIXTURE_FILE
from harness.plan.records import Plan
from harness.plan.request import layout_request
from harness.realize.adapter import Executor
from harness.realize.recorder import ReferenceRows
from harness.realize.schedule import Schedule, schedule_of
from harness.run.child import say
from harness.run.conditions import apply_determinism
from harness.run.devices import bound_device, exhaustion_told
from harness.run.job import Job
from harness.state.digests import tensor_digest

Row = dict[str, object]


def make_reference(plan: Plan, job: Job, folder: Path) -> None:
    """Load the checkpoint, run the workload once, and write outputs and digests to ``folder``."""
    request = layout_request(plan)
    apply_determinism(request.determinism)
    say("ordinary load")
    # Whatever the load makes, it makes on this device.
    with exhaustion_told(), bound_device(plan, job).device:
        reference = reference_for(plan.adapter_data.family or "").ordinary(job.checkpoint, request)
    say("reference outputs")
    schedule = schedule_of(request.workload, request.spec)
    with exhaustion_told():
        outputs, tokens, states = reference_outputs(reference, schedule)
    save_file(outputs, folder / FIXTURE_FILE)
    tables.write(folder, "expected_tensors", expected_rows(reference))
    tables.write(folder, "fixture_outputs", output_rows(outputs, tokens, schedule))
    tables.write(folder, "fixture_states", states)


def state_rows(executor: Executor, point: str) -> list[Row]:
    """Rows of ``fixture_states``: the mutable state as the ordinary run has it."""
    return [
        {"point": point, "name": name, "bytes": tensor.nbytes, "digest": tensor_digest(tensor)}
        for name, tensor in executor.declared_state().items()
    ]


def reference_outputs(
    reference: Reference, schedule: Schedule
) -> tuple[dict[str, torch.Tensor], dict[tuple[str, int], int], list[Row]]:
    """Run the schedule once: stacked outputs, the token after each step, digests of the state."""
    executor = reference.executor
    executor.reset()
    tokens: dict[tuple[str, int], int] = {}
    planes: dict[str, list[torch.Tensor]] = {"prefill": [], "decode": []}
    logits: dict[str, list[torch.Tensor]] = {"prefill": [], "decode": []}

    def step(phase: str, index: int, ids: Sequence[int], start: int, is_last: bool) -> int | None:
        output = executor.step(ids, start, want_logits=is_last and schedule.has_head)
        planes[phase].append(output.plane.clone().cpu())
        if output.logits is None:
            return None
        logits[phase].append(output.logits.clone().cpu())
        tokens[phase, index] = executor.choose(output.logits).token
        return tokens[phase, index]

    chosen: int | None = None
    for chunk in schedule.chunks:
        ids = chunk.token_ids
        chosen = step("prefill", chunk.index, ids, chunk.start_position, chunk.is_last)
    states = state_rows(executor, "after_prefill")
    for index in range(schedule.decode_steps):
        ids = (schedule.decode_input(index, chosen),)
        chosen = step("decode", index, ids, schedule.prompt_rows + index, True)
    outputs = {f"{phase}.plane": torch.cat(rows) for phase, rows in planes.items() if rows}
    if schedule.has_head:
        outputs["prefill.logits"] = logits["prefill"][-1]
        outputs["decode.logits"] = torch.stack(logits["decode"])
    return outputs, tokens, states + state_rows(executor, "after_decode")


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

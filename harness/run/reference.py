"""Reference outputs of a plan's recipe, made by an ordinary, unselective load.

Shares the forward code with the producer and nothing of its realization: every file is loaded
whole, no arena, no staging, no bounded reader. Also the expected digest of each resident tensor,
from its own transform of the checkpoint's bytes. Knows no cache and no process.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

from harness.adapters.families import Reference, reference_for
from harness.errors import InvalidInputError
from harness.evidence import tables
from harness.plan.recipe import FIXTURE_FILE
from harness.plan.records import Plan
from harness.plan.request import layout_request
from harness.realize.adapter import Choice, Executor
from harness.realize.recorder import ReferenceRows
from harness.realize.schedule import Schedule, schedule_of
from harness.run.child import say
from harness.run.conditions import apply_determinism
from harness.state.digests import tensor_digest

Row = dict[str, object]


def make_reference(plan: Plan, checkpoint: Path, folder: Path) -> None:
    """Load the checkpoint, run the workload once, and write outputs and digests to ``folder``."""
    request = layout_request(plan)
    apply_determinism(request.determinism)
    say("ordinary load")
    reference = reference_for(plan.adapter_data.family or "").ordinary(checkpoint, request)
    say("reference outputs")
    schedule = schedule_of(request.workload)
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
    planes, logits = [], []
    choice: Choice | None = None
    for chunk in schedule.chunks:
        output = executor.step(chunk.token_ids, chunk.start_position, want_logits=chunk.is_last)
        planes.append(output.plane.clone())
        if output.logits is not None:
            logits.append(output.logits.clone())
            choice = executor.choose(output.logits)
            tokens["prefill", chunk.index] = choice.token
    if choice is None:
        raise InvalidInputError("the workload has no prompt, so there is nothing to refer to")
    states = state_rows(executor, "after_prefill")
    outputs = {"prefill.plane": torch.cat(planes), "prefill.logits": logits[-1]}
    planes, logits = [], []
    for step in range(schedule.decode_steps):
        output = executor.step((choice.token,), schedule.prompt_rows + step, want_logits=True)
        assert output.logits is not None
        planes.append(output.plane.clone())
        logits.append(output.logits.clone())
        choice = executor.choose(output.logits)
        tokens["decode", step] = choice.token
    if planes:
        outputs |= {"decode.plane": torch.cat(planes), "decode.logits": torch.stack(logits)}
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
    for phase, step, start_position, num_rows, has_logits in steps:
        for output in ("plane", "logits") if has_logits else ("plane",):
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

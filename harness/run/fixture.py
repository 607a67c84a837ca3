"""The fixture maker: reference outputs of a plan's recipe, made by an ordinary, unselective load.

It shares the forward code with the producer and nothing of its realization: every file is loaded
whole, no arena, no staging, no bounded reader. It also writes the expected digest of each resident
tensor, from its own transform of the checkpoint's bytes. Outputs are cached by recipe, conditions
and source; a cached folder that is not byte for byte what was written is made again.
"""

import argparse
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from harness.adapters.families import Reference, reference_for
from harness.canonical import (
    canonical_bytes,
    file_digest,
    read_json,
    sha256_digest,
    write_durable,
)
from harness.errors import InvalidInputError
from harness.evidence import tables
from harness.evidence.source import package_digest
from harness.plan.load import load_plan
from harness.plan.recipe import FIXTURE_FILE, recipe_digest
from harness.plan.request import layout_request
from harness.realize.adapter import Choice, Executor
from harness.realize.recorder import ReferenceRows
from harness.realize.schedule import Schedule, schedule_of
from harness.run.child import run_child, say
from harness.run.conditions import apply_determinism, machine_conditions
from harness.run.job import Job, read_job
from harness.state.digests import tensor_digest

Row = dict[str, object]
SEAL_FILE = "files.json"
FILES = (
    FIXTURE_FILE,
    "expected_tensors.parquet",
    "fixture_outputs.parquet",
    "fixture_states.parquet",
)


def make(job: Job) -> None:
    """Place the fixture of a job's plan in ``job.fixture``, from the cache or newly made."""
    loaded = load_plan(job.plan)
    request = layout_request(loaded.plan)
    apply_determinism(request.determinism)
    # Dtype, kernel set and geometry are part of the recipe; this load knows no device.
    key = machine_conditions() | {"package": package_digest()}
    recipe = recipe_digest(loaded.document)
    name = f"{recipe[7:23]}-{sha256_digest(canonical_bytes(key))[7:23]}"
    cached = job.cache / "fixtures" / name
    if is_intact(cached):
        say("cached")
    else:
        say("ordinary load")
        reference = reference_for(loaded.plan.adapter_data.family or "").ordinary(
            job.checkpoint, request
        )
        say("reference outputs")
        schedule = schedule_of(request.workload)
        outputs, tokens, states = reference_outputs(reference, schedule)
        publish(cached, reference, outputs, output_rows(outputs, tokens, schedule), states)
    job.fixture.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        shutil.copyfile(cached / file, job.fixture / file)


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


def publish(
    cached: Path,
    reference: Reference,
    outputs: dict[str, torch.Tensor],
    rows: list[Row],
    states: list[Row],
) -> None:
    """Write a fixture folder and give it its final name in one step."""
    building = cached.parent / f".{cached.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    building.mkdir(parents=True)
    try:
        save_file(outputs, building / FIXTURE_FILE)
        tables.write(building, "expected_tensors", expected_rows(reference))
        tables.write(building, "fixture_outputs", rows)
        tables.write(building, "fixture_states", states)
        seal = {file: file_digest(building / file) for file in FILES}
        write_durable(building / SEAL_FILE, canonical_bytes(seal))
        # Another maker's finished folder is as good, and somebody may be copying it.
        if is_intact(cached):
            return
        if cached.is_dir() and not cached.is_symlink():
            shutil.rmtree(cached, ignore_errors=True)
        else:
            cached.unlink(missing_ok=True)
        try:
            building.rename(cached)
        except OSError:
            if not is_intact(cached):
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def is_intact(cached: Path) -> bool:
    """Whether a cached folder holds exactly the bytes that were sealed."""
    try:
        seal: dict[str, Any] = read_json(cached / SEAL_FILE, max_bytes=1 << 16)
        return sorted(seal) == sorted(FILES) and all(
            file_digest(cached / file) == seal[file] for file in FILES
        )
    except (InvalidInputError, OSError, TypeError):
        return False


def main() -> int:
    """Entry of the child process."""
    parser = argparse.ArgumentParser(description="make the reference fixture of a plan")
    parser.add_argument("--job", type=Path, required=True)
    make(read_job(parser.parse_args().job))
    return 0


if __name__ == "__main__":
    run_child(main)

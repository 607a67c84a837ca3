"""One ordinary run of a whole plan in this process: the bits that any cut of it must repeat.

What of the state belongs to which layers is written down here for each family, apart from the code
under test.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from harness.adapters.families import layout_for, reference_for
from harness.checkpoint.sources import fetch
from harness.plan.load import LoadedPlan
from harness.plan.records import Plan
from harness.plan.request import layout_request
from harness.state.digests import tensor_digest

ALL_LAYERS = "all"
STATE_OF_KIND = {
    ALL_LAYERS: ("k", "v"),
    "swa": ("swa.k", "swa.v"),
    "full": ("full.k", "full.v"),
    "linear": ("conv", "recurrent"),
}
"""Kind of layer -> the tensors of the mutable state whose first axis counts its layers."""


def kinds_of(family: str, config: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Kind of each layer, and the state's tensors of each kind."""
    if family == "gemma":
        return list(config["layer_kinds"]), dict(STATE_OF_KIND)
    if family == "qwen3_5_moe":
        return [layer["kind"] for layer in config["layers"]], STATE_OF_KIND | {"full": ("k", "v")}
    return [ALL_LAYERS] * config["num_layers"], dict(STATE_OF_KIND)


def parts_of(
    state: Mapping[str, torch.Tensor], kinds: Sequence[str], names: Mapping[str, Any], cut: slice
) -> dict[str, str]:
    """Digests of what the stage with these layers must hold of the whole model's state."""
    found = {}
    layered = {name for kind in set(kinds) for name in names[kind]}
    for kind in sorted(set(kinds[cut])):
        begin = kinds[: cut.start].count(kind)
        for name in names[kind]:
            rows = state[name][begin : begin + kinds[cut].count(kind)]
            found[name] = tensor_digest(rows.contiguous())
    # Mappings of positions are the same on every stage; a geometry counts the stage's own layers.
    for name in state.keys() - layered - {"geometry"}:
        if not name.startswith("swa.") or "swa" in kinds[cut]:
            found[name] = tensor_digest(state[name])
    if "swa" in kinds and "swa" not in kinds[cut]:
        del found["full_to_swa"]
    return found


class Control:
    """One ordinary run of a whole plan in this process, cut into steps by hand."""

    def __init__(self, plan: Plan, checkpoint: Path, cuts: Sequence[int]) -> None:
        request = layout_request(plan)
        torch.set_num_threads(request.determinism.num_threads)
        family = plan.adapter_data.family or ""
        executor = reference_for(family).ordinary(checkpoint, request).executor
        kinds, names = kinds_of(family, request.config)
        edges = [0, *cuts, len(kinds)]
        self.steps: list[tuple[str, str | None, int | None]] = []
        self.states: list[list[dict[str, str]]] = []

        def keep_state() -> None:
            state = executor.declared_state()
            cut_at = [slice(a, b) for a, b in pairwise(edges)]
            self.states.append([parts_of(state, kinds, names, cut) for cut in cut_at])

        prompt, rows = request.workload.prompt_token_ids, request.workload.chunk_rows
        executor.reset()
        keep_state()
        token = None
        for start in range(0, len(prompt), rows):
            is_last = start + rows >= len(prompt)
            token = self._keep(
                executor, executor.step(prompt[start : start + rows], start, want_logits=is_last)
            )
        keep_state()
        for position in range(len(prompt), len(prompt) + request.workload.decode_steps):
            assert token is not None
            token = self._keep(executor, executor.step((token,), position, want_logits=True))
        keep_state()

    def _keep(self, executor: Any, output: Any) -> int | None:
        if output.logits is None:
            self.steps.append((tensor_digest(output.plane), None, None))
            return None
        token = int(executor.choose(output.logits).token)
        self.steps.append((tensor_digest(output.plane), tensor_digest(output.logits), token))
        return token


def of_one_process(trial: Any, checkpoint: Path) -> Control:
    plan = trial.plan.plan
    return Control(plan, checkpoint, [stage.start_layer for stage in plan.stages[1:]])


def assert_equal(trial: Any, checkpoint: Path) -> None:
    """Planes, logits, tokens and every stage's state are those of one process."""
    assert (trial.code, trial.verdict["status"], trial.failed) == (0, "passed", set())
    control, record = of_one_process(trial, checkpoint), trial.record
    stages, workload = trial.plan.plan.stages, trial.plan.plan.workload
    chunks = len(control.steps) - workload.decode_steps
    for repetition in range(workload.repetitions):
        steps = [
            (row["plane_digest"], row["logits_digest"], row["token"])
            for row in record.rows("steps", 0, len(stages) - 1)
            if row["phase"] == "prefill" or row["repetition"] == repetition
        ]
        assert steps == control.steps
    assert chunks == 2
    for number in range(len(stages)):
        rows = record.rows("states", 0, number)
        for point, at in (
            ("before_prefill", 0),
            ("after_prefill", 1),
            ("after_restore", 1),
            ("after_decode", 2),
        ):
            for repetition in {row["repetition"] for row in rows if row["point"] == point}:
                held = {
                    row["name"]: row["digest"]
                    for row in rows
                    if (row["repetition"], row["point"]) == (repetition, point)
                }
                held.pop("geometry", None)
                assert held == control.states[at][number], (number, point)


def checkpoint_of(plan: LoadedPlan, cache: Path) -> Path:
    assert plan.plan.checkpoint is not None
    layout = layout_for(plan.plan.adapter_data.family or "")
    return fetch(plan.plan.checkpoint.source, cache, tensors=layout.synthetic_tensors)

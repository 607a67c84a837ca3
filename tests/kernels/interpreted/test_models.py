"""Whole models of every family through the interpreted set: as the reference, at any chunking."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.adapters.families import layout_for, reference_for
from harness.checkpoint.sources import fetch
from harness.plan.load import load_plan
from harness.plan.request import layout_request
from harness.state.recording import HostRecording

ROOT = Path(__file__).resolve().parents[3]
PROMPT = 5
DECODE = 1
# float32 sums of another order, or bfloat16 rounding, through all layers of a tiny model.
LIMITS = {torch.float32: 2e-5, torch.bfloat16: 4e-2}


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_gemma_hybrid", "tiny_qwen_nvfp4"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    plan = load_plan(ROOT / "plans" / f"{request.param}.json").plan
    layout = layout_for(plan.adapter_data.family or "")
    assert plan.checkpoint is not None
    folder = fetch(
        plan.checkpoint.source,
        tmp_path_factory.mktemp("cache"),
        progress=lambda text, fraction=None: None,
        tensors=layout.synthetic_tensors,
    )
    return plan, folder


def outputs(
    model: Any, kernel_set: str, chunks: Sequence[int], *, is_recorded: bool = False
) -> list[torch.Tensor]:
    """Planes of the prompt and of each decode step, the logits after each, and the state."""
    plan, folder = model
    whole = layout_request(plan)
    request = replace(whole, determinism=replace(whole.determinism, kernel_set=kernel_set))
    executor = reference_for(plan.adapter_data.family).ordinary(folder, request).executor
    executor.reset()
    recordings: list[HostRecording] = []
    if is_recorded:
        buffers = decode_buffers(plan, request)
        executor.record_decode(
            PROMPT, buffers, lambda work: recordings.append(HostRecording(work)) or recordings[-1]
        )
    prompt = list(whole.workload.prompt_token_ids[:PROMPT])
    planes, logits, start = [], [], 0
    for size in [*chunks, *([1] * DECODE)]:
        ids = prompt[start : start + size] if start < len(prompt) else [7 + start]
        has_logits = start + size >= len(prompt)
        output = executor.step(ids, start, want_logits=has_logits)
        planes.append(output.plane.clone())
        if output.logits is not None:
            logits.append(output.logits.clone())
        start += size
    assert len(recordings) == is_recorded
    state = [tensor.clone() for tensor in executor.declared_state().values()]
    return [torch.cat(planes), *logits, *state]


def decode_buffers(plan: Any, request: Any) -> dict[str, torch.Tensor]:
    recorded = replace(request, workload=replace(request.workload, decode_mode="recorded"))
    specs = layout_for(plan.adapter_data.family).tensors(
        recorded, "state.decode-buffers", "static-buffers", ()
    )
    return {spec.name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs}


@pytest.mark.slow
def test_a_recorded_step_reads_its_position_where_the_row_is(model: Any) -> None:
    chunks = [PROMPT, 1, 1]
    expected = outputs(model, "triton/1", chunks)
    actual = outputs(model, "triton/1", chunks, is_recorded=True)
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.slow
def test_equals_the_reference_set(model: Any) -> None:
    ours = outputs(model, "triton/1", [PROMPT])
    theirs = outputs(model, "torch-reference/1", [PROMPT])
    assert len(ours) == len(theirs) > 1
    for one, other in zip(ours[: 2 + DECODE], theirs, strict=False):
        limit = LIMITS[ours[0].dtype] * float(other.float().abs().max())
        assert float((one.float() - other.float()).abs().max()) <= limit


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [[1] * PROMPT, [3, 2]], ids=["one by one", "uneven"])
def test_chunks_change_no_bit(model: Any, chunks: list[int]) -> None:
    expected = outputs(model, "triton/1", [PROMPT])
    for one, other in zip(outputs(model, "triton/1", chunks), expected, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))

"""A decode step on a GPU waits for nothing: no bytes move between host and device, in no family."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from fake_cuda import CUDA, Crossings, FakeBlocks, fake_cuda

import kernels.sampling.api as sampling
from harness.adapters.families import adapter_for, layout_for
from harness.plan.load import load_plan
from harness.plan.request import layout_request
from harness.realize.adapter import AdapterContext
from harness.state.arena import Memory
from harness.state.recording import HostRecording, Recording
from harness.state.table import HostTable

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["tiny_llama", "tiny_gemma_hybrid", "tiny_qwen_nvfp4"]


@dataclass
class Recorder:
    recordings: list[Recording] = field(default_factory=list)

    def __call__(self, work: Any) -> Recording:
        self.recordings.append(HostRecording(work))
        return self.recordings[-1]


def executor_of(name: str, record: Recorder) -> tuple[Any, list[int]]:
    """An executor whose every tensor is a GPU's, and the prompt of its plan."""
    plan = load_plan(ROOT / "plans" / f"{name}.json").plan
    family, whole = plan.adapter_data.family or "", layout_request(plan)
    request = replace(
        whole,
        determinism=replace(whole.determinism, kernel_set="triton/1"),
        workload=replace(whole.workload, decode_mode="recorded"),
        eviction_policy="evict-outside-window/1" if "gemma" in name else None,
    )
    memory = Memory(
        resource_id="gpu", kind="accelerator-vram", capacity_bytes=1 << 34, blocks=FakeBlocks()
    )
    adapter = adapter_for(family)
    context = AdapterContext(request=request, memories={"gpu": memory}, census=(), record=record)
    adapter.begin(context)
    for design in layout_for(family).states(request):
        if design.on_device:
            intent = replace(
                plan.materializations[0],
                id=design.id,
                logical_state_id=design.id,
                representation=design.representation,
                memory_resource_id="gpu",
            )
            adapter.allocate(intent)
    return adapter.activate(plan.execution[0]), list(request.workload.prompt_token_ids)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_bytes_move_in_a_decode_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Recorder()
    with fake_cuda(monkeypatch) as launched:
        executor, prompt = executor_of(name, record)
        first, last = len(prompt) - 2, len(prompt) + 2
        executor.step(prompt[:first], 0, want_logits=True)
        counts = []
        with Crossings() as crossings:
            # Rows of the prompt run as they do without a recording.
            for position in range(first, last):
                launched.clear()
                executor.step([3], position, want_logits=True)
                counts.append(launched.count("attend_kernel"))
    assert crossings.seen == []
    assert len(set(counts)) == 1
    assert counts[0] > 0
    assert len(record.recordings) == 1, "one for all positions"


@pytest.mark.slow
def test_what_moves_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch), Crossings() as crossings:
        table = HostTable(torch.zeros(100, dtype=torch.int64, device=CUDA))
        table.put(slice(3, 9), 5)
        table.put(slice(0, 16), list(range(16)))
        table.fill(7)
        assert crossings.seen == []
        table.put(slice(0, 17), list(range(17)))
        assert crossings.seen
        crossings.seen.clear()
        with pytest.raises(RuntimeError):
            int(torch.zeros(1, device=CUDA))


@pytest.mark.slow
def test_to_choose_a_token_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch), Crossings() as crossings:
        # There are no numbers here to go on with.
        with pytest.raises(Exception, match="_local_scalar_dense"):
            sampling.greedy(torch.zeros(99, device=CUDA), kernel_set="triton/1")
        assert len(crossings.seen) == 1

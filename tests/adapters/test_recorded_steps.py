"""Recorded decode: its bits are those of single steps, and what it holds does not grow."""

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.adapters.families import layout_for, reference_for
from harness.checkpoint.sources import fetch
from harness.plan.load import load_plan
from harness.plan.request import layout_request
from harness.state.recording import rehearsing

sys.path.insert(0, str(Path(__file__).parents[1] / "state"))

from fake_driver import FakeDriver

ROOT = Path(__file__).resolve().parents[2]
STEPS = 12


@pytest.fixture(params=["tiny_llama", "tiny_gemma_hybrid", "tiny_qwen_nvfp4"])
def make_executor(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Any], Any]:
    """Makes the executor of a tiny model; with a way to record, one that records its steps."""
    plan = load_plan(ROOT / "plans" / f"{request.param}.json").plan
    family, whole = plan.adapter_data.family or "", layout_request(plan)
    layout = layout_for(family)
    assert plan.checkpoint is not None
    folder = fetch(
        plan.checkpoint.source,
        tmp_path,
        progress=lambda text, fraction=None: None,
        tensors=layout.synthetic_tensors,
    )
    workload = replace(
        whole.workload, prompt_token_ids=(5, 7, 11), max_positions=64, decode_mode="recorded"
    )
    wanted = replace(whole, workload=workload)

    def make(record: Any) -> Any:
        executor = reference_for(family).ordinary(folder, wanted).executor
        if record is not None:
            specs = layout.tensors(wanted, "state.decode-buffers", "static-buffers", ())
            buffers = {s.name: torch.zeros(s.shape, dtype=getattr(torch, s.dtype)) for s in specs}
            executor.record_decode(3, buffers, record)
        return executor

    return make


def outputs(executor: Any, after_step: Callable[[], object] = lambda: None) -> list[torch.Tensor]:
    executor.reset()
    executor.step((5, 7, 11), 0, want_logits=True)
    found = []
    for position in range(3, 3 + STEPS):
        output = executor.step((position,), position, want_logits=True)
        found += [output.plane.clone(), output.logits.clone()]
        after_step()
    return found


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.slow
def test_one_graph_serves_all_positions_and_goes_with_its_executor(
    make_executor: Callable[[Any], Any],
) -> None:
    expected = outputs(make_executor(None))
    driver, held = FakeDriver(), []
    executor = make_executor(driver.record)
    for _ in range(2):
        assert same(outputs(executor, lambda: held.append(driver.used_bytes())), expected)
    assert driver.calls.count("record") == 1
    assert len(held) == 2 * STEPS
    assert set(held) == {held[0]}
    assert held[0] > 0
    assert executor.conditions()["replayed_steps"] == str(2 * STEPS)
    del executor
    gc.collect()
    driver.give_back()
    assert driver.used_bytes() == 0


@pytest.mark.slow
def test_a_rehearsed_step_runs_once_by_itself(make_executor: Callable[[Any], Any]) -> None:
    driver, recorded_after = FakeDriver(), []
    executor = make_executor(rehearsing(driver.record))
    found = outputs(executor, lambda: recorded_after.append(driver.calls.count("record")))
    assert recorded_after == [0] + [1] * (STEPS - 1)
    assert same(found, outputs(make_executor(None)))

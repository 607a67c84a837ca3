"""Processes in a chain give the bits of one process: planes, logits, tokens and state."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from stage_control import Control, assert_equal, checkpoint_of

from harness.plan.load import LoadedPlan


@pytest.fixture(autouse=True)
def threads_of_torch() -> Iterator[None]:
    """The control has as many threads as the plan says."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


LONG = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize(
    ("name", "cuts"),
    [
        pytest.param("tiny_llama", (1,), marks=pytest.mark.slow),
        pytest.param("tiny_llama", (2, 3), marks=LONG),
        pytest.param("tiny_gemma_hybrid", (3,), marks=LONG),
        pytest.param("tiny_gemma_hybrid", (2, 3), marks=LONG),
        pytest.param("tiny_qwen_nvfp4", (3,), marks=LONG),
        pytest.param("tiny_qwen_nvfp4", (1, 2), marks=LONG),
    ],
)
def test_a_chain_repeats_the_bits_of_one_process(
    prepared: Callable[[str], Any],
    run_stages: Callable[..., Any],
    name: str,
    cuts: tuple[int, ...],
) -> None:
    ready = prepared(name)
    control = Control(ready.plan, ready.checkpoint, cuts)
    outcome = run_stages(name, cuts, is_armed=True)
    assert outcome.fault is None
    assert len(outcome.reports) == len(cuts) + 1
    first, last = outcome.reports[0], outcome.reports[-1]
    assert [(s["plane"], s["logits"], s["token"]) for s in last["steps"]] == control.steps
    assert [s["token"] for s in first["steps"]] == [token for _, _, token in control.steps]
    for stage, report in enumerate(outcome.reports):
        for at, point in enumerate(("before_prefill", "after_prefill", "after_decode")):
            rows = [row for row in report["states"] if row["point"] == point]
            held = {row["name"]: row["digest"] for row in rows if row["name"] != "geometry"}
            assert held == control.states[at][stage], (stage, point)
    # What one stage put out is what crossed, and what the next one took in.
    for before, after in pairwise(outcome.reports):
        planes = [
            [c for c in each["crossings"] if c["kind"] == "plane"] for each in (before, after)
        ]
        sent = [c for c in planes[0] if c["direction"] == "sent"]
        received = [c for c in planes[1] if c["direction"] == "received"]
        assert [c["digest"] for c in sent] == [s["plane"] for s in before["steps"]]
        strip = [{k: v for k, v in c.items() if k not in ("direction", "peer")} for c in sent]
        assert strip == [
            {k: v for k, v in c.items() if k not in ("direction", "peer")} for c in received
        ]
    assert all(s["plane"] != t["plane"] for s, t in zip(first["steps"], last["steps"], strict=True))


def test_a_run_in_stages_repeats_the_bits_of_one_process(passed: Any, cache: Path) -> None:
    assert_equal(passed, checkpoint_of(passed.plan, cache))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_stages"),
    [
        ("tiny_gemma_hybrid", 3),
        ("tiny_qwen_nvfp4", 2),
        pytest.param("tiny_llama", 3, marks=pytest.mark.long),
        pytest.param("tiny_gemma_hybrid", 2, marks=pytest.mark.long),
        pytest.param("tiny_qwen_nvfp4", 3, marks=pytest.mark.long),
    ],
)
def test_any_family_in_any_stages_repeats_the_bits_of_one_process(
    staged_plan: Callable[..., LoadedPlan],
    run_staged: Callable[..., Any],
    cache: Path,
    name: str,
    num_stages: int,
) -> None:
    plan = staged_plan(name, num_stages)
    assert_equal(run_staged(plan), checkpoint_of(plan, cache))

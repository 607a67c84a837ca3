"""Processes in a chain give the bits of one process: planes, logits, tokens and state."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stage_control import assert_equal, checkpoint_of

from harness.plan.load import LoadedPlan


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

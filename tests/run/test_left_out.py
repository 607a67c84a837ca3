"""Deriving from a whole checkpoint: every tensor is needed, left out by a rule, or refused."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from harness.errors import PlanError
from harness.plan.load import LoadedPlan

sys.path.insert(0, str(Path(__file__).parents[1] / "adapters"))


def write(folder: Path, extra: str) -> dict[str, object]:
    import qwen_bench

    qwen_bench.write(folder, num_hidden_layers=1)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, extra: tensors["model.norm.weight"].clone()}, path)
    return {
        "family": "qwen3_5_moe",
        "repository": "tests/one-layer",
        "revision": "0",
        "source": {"kind": "directory", "path": str(folder)},
    }


def test_what_a_rule_leaves_out_is_not_planned(
    tmp_path: Path, freeze_plan: Callable[..., LoadedPlan]
) -> None:
    model = write(tmp_path, "model.visual.patch.weight")
    plan = freeze_plan(model=model, workload__prompt_token_ids=[1, 2]).plan
    assert "model.visual.patch.weight" not in plan.adapter_data.allowed_tensor_keys
    assert plan.adapter_data.family == "qwen3_5_moe"


def test_a_tensor_without_a_rule_is_refused_by_name(
    tmp_path: Path, freeze_plan: Callable[..., LoadedPlan]
) -> None:
    extra = "model.layers.0.mlp.experts.0.up_proj.bias"
    with pytest.raises(PlanError) as error:
        freeze_plan(model=write(tmp_path, extra), workload__prompt_token_ids=[1, 2])
    assert [finding.path for finding in error.value.findings] == [extra]

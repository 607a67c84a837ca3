"""The published figures, recomputed from dimensions and compared with the published files."""

from typing import Any

import pytest
from published_figures import Dimensions, published_bytes

from harness.plan.load import parse_plan
from harness.plan.records import Plan


@pytest.fixture(scope="module")
def plan(published_bytes: bytes) -> Plan:
    return parse_plan(published_bytes, where="published").plan


# The fixture of the published file has the function's name; keep the function under another.
recompute = published_bytes


def test_the_figures_of_the_table() -> None:
    figures = recompute(Dimensions())
    assert figures.routed_bytes == 8_636_596_224 == 19 * 256 * 1_775_616
    assert figures.mutable_runtime_bytes == 32_718_848
    assert figures.non_routed_bytes == 1_689_347_736
    assert figures.required_persistent_bytes == 10_391_381_656
    assert figures.fetched_expert_bytes == 8_606_770_176 == 19 * 256 * 1_769_484
    assert figures.fetched_rest_bytes == 1_688_189_260
    assert figures.fetched_bytes == 10_294_959_436
    assert figures.transient_upper_bound_bytes == 18_931_555_660
    assert figures.transient_upper_bound_bytes + figures.unfetched_bytes == 18_931_555_888
    assert figures.num_unfetched_keys == 57
    assert figures.num_staging_tensors == 114
    assert figures.reference_fixture_bytes == 327_680


def test_the_parts_of_the_non_routed_figure() -> None:
    whole = Dimensions()

    def grown(**more: int) -> int:
        fields = {name: getattr(whole, name) for name in ("num_linear_layers", "num_full_layers")}
        fields.update(more)
        return recompute(Dimensions(**fields)).non_routed_bytes - 1_689_347_736

    common = 2_836_480 + 8
    assert grown(num_linear_layers=16) == common + 33_939_968
    assert grown(num_full_layers=5) == common + 27_309_056
    assert recompute(Dimensions(vocabulary=248_321)).non_routed_bytes - 1_689_347_736 == 4096


def test_the_plan_has_these_bytes(plan: Plan) -> None:
    figures = recompute(Dimensions())
    assert {item.id: item.expected_bytes for item in plan.materializations} == {
        "mat.routed.ram-stage": figures.routed_bytes,
        "mat.routed.vram": figures.routed_bytes,
        "mat.non-routed.vram": figures.non_routed_bytes,
        "mat.runtime.vram": figures.mutable_runtime_bytes,
        "mat.replay.vram": figures.mutable_runtime_bytes,
    }
    keys = plan.adapter_data.allowed_tensor_keys
    assert len(keys) == figures.num_tensor_keys
    unfetched = [key for key in keys if ".shared_expert." in key and key.endswith(".input_scale")]
    assert len(unfetched) == figures.num_unfetched_keys


def test_the_result_has_these_bytes(published_result: dict[str, Any]) -> None:
    figures = recompute(Dimensions())
    memory = published_result["memory"]
    assert memory["transient_upper_bound_bytes"] == figures.transient_upper_bound_bytes
    assert memory["persistent_required_bytes"] == figures.required_persistent_bytes
    assert memory["persistent_host_evidence_bytes"] == figures.reference_fixture_bytes
    correctness = published_result["correctness"]
    assert correctness["staging_tensor_count"] == figures.num_staging_tensors


def test_more_positions_take_more_key_value_bytes() -> None:
    longer = recompute(Dimensions(num_positions=128))
    assert longer.mutable_runtime_bytes - 32_718_848 == 524_288

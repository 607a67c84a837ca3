"""Deriving plans with stages from experiments: what stages hold, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.adapters.families import layout_for
from harness.errors import InvalidInputError
from harness.plan.balance import balanced_cuts, range_bytes
from harness.plan.check import check_plan
from harness.plan.load import LoadedPlan
from harness.plan.manifest import load_manifest
from harness.plan.request import layout_request
from harness.plan.show import show_plan


def held(plan: LoadedPlan) -> list[int]:
    """Resident and mutable bytes of each stage, as its materializations say."""
    return [
        sum(
            item.expected_bytes
            for item in plan.plan.materializations
            if item.stage_id == stage.id
            and item.logical_state_id != "state.rope"
            and item.role in ("required_residency", "mutable_authority")
        )
        for stage in plan.plan.stages or ()
    ]


@pytest.mark.parametrize(
    "name", ["tiny_llama", pytest.param("tiny_qwen_nvfp4", marks=pytest.mark.slow)]
)
def test_every_family_is_cut_and_keeps_the_rules(
    staged_plan: Callable[..., LoadedPlan], name: str
) -> None:
    plan = staged_plan(name, 3)
    layout = layout_for(plan.plan.adapter_data.family or "")
    assert plan.path is not None
    assert plan.plan.checkpoint is not None
    manifest = load_manifest(plan.path.parent, plan.plan.checkpoint.manifest)
    assert check_plan(plan, environment=None, support=layout, manifest=manifest) == []
    request = layout_request(plan.plan)
    cuts = balanced_cuts(range_bytes(layout, request), 3)
    assert [stage.start_layer for stage in plan.plan.stages or ()] == [0, *cuts]
    # Of three layers' worth of room none is left for a layer more on the emptiest stage.
    sizes = held(plan)
    assert max(sizes) - min(sizes) <= max(range_bytes(layout, request).layers) * 2
    shown = show_plan(plan)
    assert f"stage-1: layers [{cuts[0]}, {cuts[1]})" in shown


@pytest.mark.parametrize(
    ("num_stages", "overrides", "named"),
    [
        (1, (), "realization.stages"),
        ("true", (), "realization.stages"),
        (5, (), "so many stages"),
        (2, ("+workload.decode_mode=recorded",), "are not recorded"),
        (4, ("workload.fresh_realizations=3",), "more than the 8 processes"),
        (
            2,
            ("realization.nodes=2", "workload.fresh_realizations=4"),
            "more than the 6 processes",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(
    staged_plan: Callable[..., LoadedPlan], num_stages: Any, overrides: tuple[str, ...], named: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        staged_plan("tiny_llama", num_stages, *overrides)
    assert named in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_plan_without_stages_has_none_of_their_fields(
    staged_plan: Callable[..., LoadedPlan],
) -> None:
    plan = staged_plan("tiny_llama", "null")  # type: ignore[arg-type]
    assert "stages" not in plan.document
    assert set(plan.document["timeouts"]) == {"fixture_s", "realization_s", "audit_s"}
    assert not any("stage_id" in item for item in plan.document["materializations"])
    assert all(check["id"][:7] != "stages." for check in plan.document["checks"]["acceptance"])

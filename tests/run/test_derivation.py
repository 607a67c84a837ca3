"""From settings to a plan: the optional ones, and what is refused before anything is planned."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from harness.adapters.families import layout_for
from harness.errors import InvalidInputError, PlanError
from harness.plan.checks import ACCEPTANCE
from harness.plan.limits import limits_document
from harness.plan.load import LoadedPlan
from harness.plan.records import ModelRange
from harness.plan.request import layout_request
from harness.run import derivation

Freeze = Callable[..., LoadedPlan]


def refused(freeze_plan: Freeze, **changes: Any) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        freeze_plan(**changes)
    return caught.value


def of_range(**values: Any) -> dict[str, Any]:
    return {"model__range": values}


# The part of the model


def test_without_a_range_the_whole_model_is_planned(
    freeze_plan: Freeze, small_plan: LoadedPlan
) -> None:
    spec = small_plan.plan.adapter_data.spec
    assert (spec.start_layer, spec.end_layer) == (0, 2)
    assert spec.owns_embeddings
    assert spec.owns_final_norm_head
    for whole in (None, {}, {"start_layer": 0}, {"end_layer": 2, "owns_embeddings": True}):
        assert freeze_plan(model__range=whole).document == small_plan.document


def test_a_range_plans_its_layers_only(freeze_plan: Freeze, small_plan: LoadedPlan) -> None:
    plan = freeze_plan(**of_range(start_layer=1))
    spec = plan.plan.adapter_data.spec
    assert (spec.start_layer, spec.end_layer) == (1, 2)
    # The ends follow the layers where nothing else is asked for.
    assert (spec.owns_embeddings, spec.owns_final_norm_head) == (False, True)
    assert (spec.model_repository, spec.revision) == ("synthetic/small", "seed-7")
    keys = set(plan.plan.adapter_data.allowed_tensor_keys)
    left_out = set(small_plan.plan.adapter_data.allowed_tensor_keys) - keys
    assert left_out
    assert all(key.startswith("model.layers.0.") for key in left_out)
    assert plan.plan.checkpoint is not None
    assert plan.plan.checkpoint.manifest.num_tensors == len(keys)
    assert layout_request(plan.plan).spec == spec


@pytest.mark.parametrize("bad", [{"end_layer": 3}, {"start_layer": 2}, {"start_layer": -1}])
def test_layers_that_the_model_lacks_are_refused(
    freeze_plan: Freeze, bad: Mapping[str, int]
) -> None:
    assert "range is not within the model" in str(refused(freeze_plan, **of_range(**bad)))


@pytest.mark.parametrize(
    "bad",
    [
        {"start_layer": True},
        {"start_layer": "0"},
        {"end_layer": 1.0},
        {"end_layer": None},
        {"owns_embeddings": 1},
        {"owns_final_norm_head": "yes"},
        {"layers": 1},
        {"revision": "another"},
        {"model_repository": "another/one"},
        {1: 2},
        [0, 1],
        "0-1",
        0,
    ],
    ids=repr,
)
def test_what_is_no_range_is_refused_and_nothing_of_it_dropped(
    freeze_plan: Freeze, bad: Any
) -> None:
    error = refused(freeze_plan, model__range=bad)
    assert error.where == "model.range"
    named = next(iter(bad)) if isinstance(bad, dict) else bad
    assert str(named) in str(error.got)


# How the prompt is cut, and the pages of the state


def test_a_partition_stands_in_the_plan(freeze_plan: Freeze, small_plan: LoadedPlan) -> None:
    plan = freeze_plan(workload__prefill_partition=[[0, 1], [1, 5]])
    assert plan.plan.workload is not None
    assert plan.plan.workload.prefill_partition == ((0, 1), (1, 5))
    more = {"prefill_partition": [[0, 1], [1, 5]]}
    assert plan.document["workload"] == small_plan.document["workload"] | more
    absent = freeze_plan(workload__prefill_partition=None, workload__page_size=None)
    assert absent.document == small_plan.document


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        ([[0, 2], [3, 5]], "$.workload.prefill_partition[1]"),
        ([[0, 4]], "$.workload.prefill_partition[0]"),
        ([[0, 5]], "$.workload.prefill_partition[0]"),
        ([[1, 5]], "$.workload.prefill_partition[0]"),
        ([[0, True], [1, 5]], "$.workload.prefill_partition[0][1]"),
        ([[0, 1.0], [1, 5]], "$.workload.prefill_partition[0][1]"),
        ([[-1, 1], [1, 5]], "$.workload.prefill_partition[0][0]"),
        ([[0, 1, 2], [2, 5]], "$.workload.prefill_partition[0]"),
        ([], "$.workload.prefill_partition"),
    ],
)
def test_a_partition_that_is_none_is_refused_by_its_place(
    freeze_plan: Freeze, bad: Any, place: str
) -> None:
    error = refused(freeze_plan, workload__prefill_partition=bad)
    assert isinstance(error, PlanError)
    assert place in [getattr(finding, "path", None) for finding in error.findings]


@pytest.mark.parametrize("bad", [64, "0-5", [0, 5], [[0, 2], 5], {"0": 5}, True], ids=repr)
def test_what_is_no_list_of_intervals_is_refused(freeze_plan: Freeze, bad: Any) -> None:
    assert refused(freeze_plan, workload__prefill_partition=bad).where == (
        "workload.prefill_partition"
    )


@pytest.mark.parametrize("bad", [True, "4", 4.0, [4]], ids=repr)
def test_a_page_size_of_another_type_is_refused(freeze_plan: Freeze, bad: Any) -> None:
    error = refused(freeze_plan, workload__page_size=bad)
    assert (error.where, error.got) == ("workload", f"page_size: {bad!r} is not int or NoneType")


@pytest.mark.parametrize("bad", [0, -4])
def test_a_page_holds_a_position_or_more(freeze_plan: Freeze, bad: int) -> None:
    error = refused(freeze_plan, workload__page_size=bad)
    assert isinstance(error, PlanError)
    assert "$.workload.page_size" in [getattr(f, "path", None) for f in error.findings]


# What is let go, and in which form


def test_a_policy_that_the_family_lacks_is_refused(
    freeze_plan: Freeze, small_plan: LoadedPlan
) -> None:
    assert freeze_plan(realization__eviction_policy=None).document == small_plan.document
    error = refused(freeze_plan, realization__eviction_policy="let-go/1")
    assert isinstance(error, PlanError)
    assert "'let-go/1' is not built" in str(error)
    assert "$.eviction_policy" in str(error)


@pytest.mark.parametrize("bad", [1, True, ["let-go/1"], {}], ids=repr)
def test_a_policy_is_a_name(freeze_plan: Freeze, bad: Any) -> None:
    error = refused(freeze_plan, realization__eviction_policy=bad)
    assert error.where == "realization.eviction_policy"


def test_forms_are_chosen_by_state(freeze_plan: Freeze, small_plan: LoadedPlan) -> None:
    own = layout_request(small_plan.plan).representations["state.weights"]
    for same in (None, {}, {"state.weights": own}):
        assert freeze_plan(realization__representations=same).document == small_plan.document
    for wrong in ({"state.weights": "another"}, {"state.none": own}):
        error = refused(freeze_plan, realization__representations=wrong)
        assert next(iter(wrong)) in str(error)
        assert next(iter(wrong.values())) in str(error)


@pytest.mark.parametrize(
    "bad", ["whole", ["state.weights"], {"state.weights": 1}, {1: "whole"}, 0], ids=repr
)
def test_chosen_forms_are_names_by_state(freeze_plan: Freeze, bad: Any) -> None:
    error = refused(freeze_plan, realization__representations=bad)
    assert error.where == "realization.representations"


class Pooled:
    """A family like the given one, which evicts, and asks for a check and for what it needs."""

    acceptance_checks = ("state.ownership",)
    eviction_policies = frozenset({"let-go/1"})

    def tensor_keys(
        self,
        config: Mapping[str, Any],
        spec: ModelRange,
        representations: Mapping[str, str] | None = None,
    ) -> tuple[str, ...]:
        asked: list[dict[str, str]] = self.asked  # type: ignore[attr-defined]
        asked.append(dict(representations or {}))
        keys: tuple[str, ...] = super().tensor_keys(config, spec, representations)  # type: ignore[misc]
        return keys


def test_what_the_family_asks_for_is_planned(
    freeze_plan: Freeze, small_plan: LoadedPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, str]] = []
    kind = type(layout_for("llama"))
    layout = type("PooledLayout", (Pooled, kind), {"asked": asked})()
    monkeypatch.setattr(derivation, "layout_for", lambda family: layout)
    forms = {"state.weights": layout_request(small_plan.plan).representations["state.weights"]}
    plan = freeze_plan(realization__eviction_policy="let-go/1", realization__representations=forms)
    assert plan.plan.eviction_policy == "let-go/1"
    assert plan.plan.checks is not None
    assert [check.id for check in plan.plan.checks.acceptance] == [*ACCEPTANCE, "state.ownership"]
    # The census, too, is taken of what these forms are made of.
    assert asked.count(forms) >= 2
    limits = {"memory.unplanned": {"limit": 1 << 19}}
    acceptance = [{"id": name, **limits.get(name, {})} for name in ACCEPTANCE]
    error = refused(freeze_plan, checks={"acceptance": acceptance, "telemetry": []})
    assert "lacks 'state.ownership'" in str(error)


def test_limits_of_comparisons_are_declared_beside_the_checks_of_every_plan(
    freeze_plan: Freeze, small_plan: LoadedPlan
) -> None:
    limit = {"kind": "acceptance", "metric": "max_abs", "tensors": "layers.*.q", "limit": 1}
    plan = freeze_plan(checks={"comparison": [limit]}).plan
    assert plan.checks is not None
    assert small_plan.plan.checks is not None
    assert limits_document(plan.checks.comparison or ()) == [limit]
    assert plan.checks.acceptance == small_plan.plan.checks.acceptance
    assert small_plan.plan.checks.comparison is None
    for listed, named in (
        ([limit | {"tensors": "layer.*.q"}], "layer.*.q"),
        ([limit | {"metric": "mean"}], "metric"),
        ([1], "a list of mappings"),
        ({"max_abs": 1}, "a list of mappings"),
    ):
        assert named in str(refused(freeze_plan, checks={"comparison": listed}))

"""Declared limits of comparisons: what a plan may say of them, and what they mean."""

from dataclasses import replace
from typing import Any

import pytest
from plan_sample import corrupted, loaded, native_document

from harness.errors import InvalidInputError, PlanError
from harness.plan.format import plan_file_bytes
from harness.plan.limits import holds, limits_digest, limits_of, parse_limits
from harness.plan.load import parse_plan
from harness.plan.records import ComparisonLimit
from harness.plan.show import show_plan

ENTRY: dict[str, Any] = {"kind": "acceptance", "metric": "rms", "tensors": "logits", "limit": 1.0}
HALF = ENTRY | {"limit": 0.5}


def a_limit(**changes: Any) -> ComparisonLimit:
    return ComparisonLimit(**{**ENTRY, **changes})


def test_limits_have_one_digest_whatever_their_file_looked_like() -> None:
    limits = parse_limits([ENTRY | {"limit": 1}], where="x")
    assert limits == (a_limit(),)
    assert limits_digest(limits) == limits_digest(parse_limits([ENTRY], where="x"))
    assert limits_digest(limits) != limits_digest((a_limit(limit=2.0),))


def test_an_overlap_is_at_least_its_limit_and_all_else_at_most() -> None:
    assert holds(a_limit(limit=0.5), 0.5)
    assert not holds(a_limit(limit=0.5), 0.6)
    assert holds(a_limit(metric="top_k_overlap", limit=0.5), 0.6)
    assert not holds(a_limit(metric="top_k_overlap", limit=0.5), 0.4)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "wish"}, r"\[0\]\.kind"),
        ({"metric": "mean"}, r"\[0\]\.metric"),
        ({"tensors": ""}, r"\[0\]\.tensors"),
        ({"tensors": ["logits"]}, r"\[0\]\.tensors"),
        ({"limit": -1}, r"\[0\]\.limit"),
        ({"limit": True}, r"\[0\]\.limit"),
        ({"limit": float("nan")}, r"\[0\]\.limit"),
        ({"metric": "top_k_overlap", "limit": 2}, r"\[0\]\.limit"),
        ({"more": 1}, r"\[0\]: not {kind"),
    ],
)
def test_limits_that_are_not_valid_are_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        parse_limits([ENTRY | change], where="x")
    with pytest.raises(InvalidInputError, match=r"duplicate 'rms' of 'logits'"):
        parse_limits([ENTRY, ENTRY | {"limit": 3}], where="x")
    for wrong in ([], {}, None, "logits", [1]):
        with pytest.raises(InvalidInputError, match=r"not limits|not valid"):
            parse_limits(wrong, where="x")


def test_a_plan_without_limits_keeps_its_bytes_and_one_with_limits_says_them() -> None:
    without = loaded(native_document()).plan
    assert limits_of([without]) == ()
    document = corrupted(lambda d: d["checks"].update(comparison=[HALF]))
    found = parse_plan(plan_file_bytes(document), where="test")
    assert limits_of([without, found.plan, found.plan]) == (a_limit(limit=0.5),)
    assert document["digest"] != native_document()["digest"]
    assert "comparison, acceptance: rms of logits, limit 0.5" in show_plan(found)


@pytest.mark.parametrize(
    "change", [{"kind": "wish"}, {"metric": "mean"}, {"limit": "1"}, {"limit": -1}, {"more": 1}]
)
def test_a_plan_whose_limits_have_no_form_is_refused(change: dict[str, Any]) -> None:
    document = corrupted(lambda d: d["checks"].update(comparison=[ENTRY | change]))
    with pytest.raises(PlanError, match="comparison"):
        parse_plan(plan_file_bytes(document), where="test")


def test_limits_of_several_plans_are_each_kept_once() -> None:
    plan = loaded(native_document()).plan
    assert plan.checks is not None
    one, other = (
        replace(plan, checks=replace(plan.checks, comparison=limits))
        for limits in ((a_limit(), a_limit(limit=2.0)), (a_limit(limit=2.0), a_limit(limit=3.0)))
    )
    assert [limit.limit for limit in limits_of([one, other])] == [1.0, 2.0, 3.0]

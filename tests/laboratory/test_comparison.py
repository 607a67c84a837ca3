"""Comparisons of made-up trials: what decides, and in which order."""

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from armed_rows import digest
from safetensors.torch import save

from harness.laboratory.comparison import Comparison, Side, compare_sides
from harness.laboratory.kept import read_kept
from harness.plan.records import ComparisonLimit

KEY = {"device_class": "cpu", "geometry": "g", "digest_kind": "sha256"}
STEPS = (("prefill", 0), ("decode", 0), ("decode", 1))
LOGITS = {
    ("prefill", 0): [0.0, 3.0, 2.5],
    ("decode", 0): [4.0, 1.0, 1.0],
    ("decode", 1): [0.0, 0.0, 9.0],
}


def side(
    logits: dict[tuple[str, int], list[float]] = LOGITS,
    *,
    tokens: dict[tuple[str, int], int] | None = None,
    key: dict[str, Any] = KEY,
    prompt: tuple[int, ...] = (1, 2),
    other: tuple[str, int] | None = None,
    keeps: bool = True,
) -> Side:
    """A trial of two boundaries; ``other`` is a step whose first boundary differs."""
    files = save({f"{phase}/{step}": torch.tensor(logits[phase, step]) for phase, step in STEPS})
    found = read_kept(files, where="test")
    tensors = {place: found[f"{place[0]}/{place[1]}"] for place in STEPS}
    rows = []
    for place in STEPS:
        values = {
            "layers.0.q": digest(f"q {place}{place == other}"),
            "logits": "sha256:" + hashlib.sha256(tensors[place].data).hexdigest(),
        }
        rows += [
            {
                "phase": place[0],
                "step": place[1],
                "boundary": index,
                "name": name,
                "dtype": "float32",
                "shape": [3],
                "digest": value,
            }
            for index, (name, value) in enumerate(values.items())
        ]
    chosen = {place: int(np.argmax(logits[place])) for place in STEPS} | (tokens or {})
    return Side(
        conditions=key,
        prompt=prompt,
        feeds_own_tokens=True,
        boundaries=rows,
        steps=[{"phase": p, "step": s, "token": chosen[p, s]} for p, s in STEPS],
        kept={(*place, "logits"): tensors[place] for place in STEPS} if keeps else {},
    )


def moved(*moves: tuple[tuple[str, int], int, float]) -> dict[tuple[str, int], list[float]]:
    changed = {place: list(values) for place, values in LOGITS.items()}
    for place, index, by in moves:
        changed[place][index] += by
    return changed


def limit(
    metric: str, value: float, kind: str = "acceptance", tensors: str = "logits"
) -> ComparisonLimit:
    return ComparisonLimit(kind=kind, metric=metric, tensors=tensors, limit=value)


def status(found: Comparison) -> tuple[str, str]:
    return found.findings["status"], found.findings["exact"]["state"]


def test_equal_trials_pass_exactly() -> None:
    found = compare_sides(side(), side(), [])
    assert status(found) == ("passed", "equal")
    assert found.findings["kept_integrity"] == "passed"
    assert found.findings["decisions"]["identical"] == 3
    assert found.differing == []


def test_the_first_boundary_that_differs_is_named_in_execution_order() -> None:
    right = side(moved((("decode", 1), 0, 0.5)), other=("decode", 0))
    found = compare_sides(side(), right, [])
    assert status(found) == ("failed", "different")
    assert found.findings["exact"]["first_different"] == {
        "phase": "decode",
        "step": 0,
        "boundary": 0,
        "name": "layers.0.q",
    }
    assert [row["name"] for row in found.differing] == ["layers.0.q", "logits"]


def test_digests_of_other_conditions_are_not_compared() -> None:
    right = side(moved((("decode", 1), 0, 0.5)), key=KEY | {"device_class": "gpu"})
    found = compare_sides(side(), right, [])
    assert status(found) == ("not_evaluated", "inapplicable")
    assert found.findings["exact"]["inapplicable_fields"] == ["device_class"]
    assert found.differing == []
    # Numbers still are, and a declared limit decides.
    assert status(compare_sides(side(), right, [limit("max_abs", 0.6)]))[0] == "passed"
    assert status(compare_sides(side(), right, [limit("max_abs", 0.4)]))[0] == "failed"


def test_limits_decide_instead_of_exactness_and_telemetry_decides_nothing() -> None:
    right = side(moved((("prefill", 0), 0, 0.25)))
    assert status(compare_sides(side(), right, []))[0] == "failed"
    told = [limit("max_abs", 0.25), limit("rms", 0.0, kind="telemetry")]
    found = compare_sides(side(), right, told)
    assert status(found) == ("passed", "different")
    assert [each["status"] for each in found.findings["limits"]] == ["passed", "failed"]
    # Telemetry alone leaves exactness in force.
    assert status(compare_sides(side(), right, told[1:]))[0] == "failed"
    overlap = limit("top_k_overlap", 1.0)
    assert status(compare_sides(side(), right, [overlap]))[0] == "passed"


def test_a_limit_without_a_tensor_is_not_evaluated() -> None:
    limits = [limit("max_abs", 1.0, tensors="layers.*.q")]
    assert status(compare_sides(side(), side(), limits))[0] == "not_evaluated"
    assert status(compare_sides(side(), side(keeps=False), [limit("max_abs", 1.0)]))[0] == (
        "not_evaluated"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_fails_whatever_the_limit(value: float) -> None:
    right = side(moved((("decode", 1), 0, value)), tokens={("decode", 1): 2})
    found = compare_sides(side(), right, [limit("max_abs", 1e9)])
    assert status(found)[0] == "failed"
    assert found.findings["numbers"]["num_not_finite"] == 1
    assert found.findings["limits"][0]["status"] == "failed"
    # Also where nothing else would decide.
    elsewhere = side(
        moved((("decode", 1), 0, value)),
        tokens={("decode", 1): 2},
        key=KEY | {"device_class": "gpu"},
    )
    assert status(compare_sides(side(), elsewhere, [])) == ("failed", "inapplicable")


def test_a_wrong_token_fails_though_every_number_holds() -> None:
    found = compare_sides(side(), side(tokens={("decode", 1): 0}), [limit("max_abs", 1.0)])
    assert status(found)[0] == "failed"
    assert found.findings["decisions"]["wrong"] == 1


def test_behind_the_first_other_token_nothing_is_judged() -> None:
    """The prefill chooses another token within its error; the decodes then have other inputs."""
    changes = [(("prefill", 0), 2, 0.6), (("decode", 0), 0, 100.0), (("decode", 1), 0, 100.0)]
    found = compare_sides(side(), side(moved(*changes)), [limit("max_abs", 0.7)])
    assert found.findings["decisions"] == {
        "identical": 0,
        "inside_ambiguity_set": 1,
        "wrong": 0,
        "not_evaluated": 2,
    }
    assert found.findings["numbers"]["num_compared"] == 1
    assert status(found)[0] == "passed"
    assert [row["has_same_inputs"] for row in found.metrics] == [True, False, False]


def test_other_prompts_have_no_equal_inputs() -> None:
    found = compare_sides(side(), side(prompt=(1, 3)), [])
    assert found.findings["numbers"]["num_compared"] == 0
    assert found.findings["decisions"]["not_evaluated"] == 3


def test_a_kept_tensor_that_was_not_the_digested_one_fails() -> None:
    left = side()
    left.boundaries[1]["digest"] = digest("another")  # type: ignore[index]
    found = compare_sides(left, side(), [limit("max_abs", 1.0)])
    assert found.findings["kept_integrity"] == "failed"
    assert status(found)[0] == "failed"

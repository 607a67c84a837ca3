import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from harness.checkpoint.wheel_source import MAX_PARTS


@pytest.fixture(scope="module")
def validator(repo_root: Path) -> Draft202012Validator:
    schema = json.loads((repo_root / "harness/plan/schemas/plan-1.schema.json").read_text())
    wanted = {"$ref": "#/$defs/checkpoint_source", "$defs": schema["$defs"]}
    return Draft202012Validator(wanted)


@pytest.fixture
def source(repo_root: Path) -> dict[str, Any]:
    text = (repo_root / "experiments" / "model" / "gemma3_270m.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)["source"]
    return found


def test_a_plan_may_hold_parts_and_terms(
    validator: Draft202012Validator, source: dict[str, Any]
) -> None:
    assert validator.is_valid(source)
    for name in ("parts", "terms"):
        assert validator.is_valid({key: value for key, value in source.items() if key != name})
    assert validator.is_valid({**source, "parts": source["parts"][:1] * MAX_PARTS})


def test_what_a_plan_may_not_hold(validator: Draft202012Validator, source: dict[str, Any]) -> None:
    for name, value in [
        ("parts", []),
        ("parts", source["parts"][:1] * (MAX_PARTS + 1)),
        ("parts", [{**source["parts"][0], "dtype": "x"}]),
        ("parts", [{"distribution": "x"}]),
        ("terms", {**source["terms"], "sha256": "0" * 64}),
        ("terms", {**source["terms"], "accepted": True}),
        ("terms", None),
        ("accept_terms", True),
    ]:
        assert not validator.is_valid({**deepcopy(source), name: value}), (name, value)

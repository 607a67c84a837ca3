import copy
import json
from pathlib import Path
from typing import Any

import pytest
from plan_sample import environment, resources

from harness.errors import InvalidInputError
from harness.plan.environment import (
    environment_document,
    load_environment,
    parse_environment,
)


def test_a_document_is_read_and_written_back(tmp_path: Path) -> None:
    document = {
        "schema": "harness.environment/1",
        "resources": resources(),
        "facts": {"cores": 2, "cpu": "x", "swap": False, "gpu": None},
    }
    path = tmp_path / "environment.json"
    path.write_text(json.dumps(document))
    read = load_environment(path)
    assert environment_document(read) == document
    assert read.facts["gpu"] is None
    assert read.resources.nodes[0].memory_resources[1].capacity_bytes == 400


def test_a_record_that_holds_an_environment_is_read() -> None:
    inner = environment_document(environment())
    record = {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "urn:harness:record:1",
        "predicate": {"environment": inner},
    }
    assert parse_environment(record, where="test") == environment()
    for broken in ({}, None, {"environment": None}, {"environment": {"schema": "x"}}):
        with pytest.raises(InvalidInputError, match=r"predicate\.environment"):
            parse_environment({**record, "predicate": broken}, where="test")


def test_a_published_result_is_read_without_its_host_name(
    published_result: dict[str, Any],
) -> None:
    read = parse_environment(published_result, where="test")
    (node,) = read.resources.nodes
    assert node.compute_units[0].device_uuid == "GPU-1fc28f83-1d45-926e-54d0-ba1e835ef099"
    assert read.resources.backing_sources[0].id == "qwen-checkpoint"
    assert read.facts["gpu_name"] == "NVIDIA GeForce RTX 3060"
    assert "hostname" not in read.facts
    broken = copy.deepcopy(published_result)
    broken["resources"]["resources"]["nodes"][0]["id"] = 3
    with pytest.raises(InvalidInputError, match=r"nodes\[0\]\.id"):
        parse_environment(broken, where="test")


@pytest.mark.parametrize("document", [None, [], 3, {}, {"schema": "harness.plan/1"}])
def test_anything_else_is_refused(document: object) -> None:
    with pytest.raises(InvalidInputError, match="not an environment"):
        parse_environment(document, where="test")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda n: n["memory_resources"].append(n["memory_resources"][0]), "two of memory"),
        (lambda n: n["compute_units"].append(n["compute_units"][0]), "two of compute unit"),
        (lambda n: n["compute_units"][0].update(memory_resources=["disk"]), "disk"),
        (lambda n: n["memory_resources"][0].update(capacity_bytes=-1), "capacity_bytes"),
        (lambda n: n["memory_resources"][0].update(capacity_bytes=1.0), "capacity_bytes"),
        (lambda n: n["compute_units"][0].pop("device_uuid"), "device_uuid"),
        (lambda n: n["compute_units"][0].update(device_uuid="GPU-1\n"), "device_uuid"),
        (lambda n: n.update(surprise=1), "surprise"),
    ],
)
def test_an_invalid_environment_names_the_fault(spoil: Any, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        environment(lambda document: spoil(document["nodes"][0]))


def test_one_device_cannot_be_two() -> None:
    def twins(document: dict[str, Any]) -> None:
        unit = document["nodes"][0]["compute_units"][0]
        unit["device_uuid"] = "GPU-1"
        document["nodes"][0]["compute_units"].append({**unit, "id": "twin"})

    with pytest.raises(InvalidInputError, match="device UUID GPU-1"):
        environment(twins)


def test_facts_are_scalars() -> None:
    document = environment_document(environment())
    document["facts"]["list"] = [1]
    with pytest.raises(InvalidInputError, match=r"facts\.list"):
        parse_environment(document, where="test")

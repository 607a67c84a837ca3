"""The published plan keeps every rule, and each single corruption of it is found."""

import copy
import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plan_sample import Document, loaded

from harness.plan.check import check_file, check_plan
from harness.plan.environment import Environment, parse_environment
from harness.plan.load import parse_plan
from harness.plan.records import Finding

UUID = "GPU-1fc28f83-1d45-926e-54d0-ba1e835ef099"


@pytest.fixture(scope="module")
def document(published_bytes: bytes) -> Document:
    return parse_plan(published_bytes, where="published").document


@pytest.fixture(scope="module")
def short(document: Document) -> Document:
    """The same with the first hundred tensor keys, which no rule but one looks at."""
    data = document["adapter_data"]
    keys = data["allowed_tensor_keys"][:100]
    return {**document, "adapter_data": {**data, "allowed_tensor_keys": keys}}


@pytest.fixture(scope="module")
def machine(published_result: dict[str, Any]) -> Environment:
    return parse_environment(published_result, where="published")


def check(document: Document, machine: Environment | None) -> list[Finding]:
    return check_plan(loaded(document), environment=machine, support=None, manifest=None)


def test_the_published_plan_breaks_no_rule(document: Document, machine: Environment) -> None:
    assert check(document, machine) == []


def test_the_published_files_are_accepted(
    tmp_path: Path, published_bytes: bytes, machine: Environment
) -> None:
    path = tmp_path / "frozen-plan.json"
    path.write_bytes(published_bytes)
    plan, findings = check_file(path, environment=machine)
    assert plan is not None
    assert findings == []


def mat(document: Document, index: int, **fields: object) -> None:
    document["materializations"][index].update(fields)


def node(document: Document) -> Document:
    return document["resources"]["nodes"][0]


def unit(document: Document) -> Document:
    return node(document)["compute_units"][0]


def required(document: Document) -> list[Document]:
    return document["execution"][0]["required_state"]


CASES: list[tuple[str, str, Callable[[Document], object]]] = [
    (
        "rule-01-identity",
        "$.adapter_data.spec.model_repository",
        lambda d: d["model"].update(repository="x/y"),
    ),
    (
        "rule-01-identity",
        "$.resources.backing_sources[0].revision",
        lambda d: d["model"].update(revision="0" * 40),
    ),
    ("rule-02-swarm", "$.resources.swarm_id", lambda d: d["resources"].update(swarm_id="r2")),
    (
        "rule-03-unique-ids",
        "$.materializations[5].id",
        lambda d: d["materializations"].append(d["materializations"][0]),
    ),
    (
        "rule-03-unique-ids",
        "$.logical_state_units[4].id",
        lambda d: d["logical_state_units"].append(d["logical_state_units"][0]),
    ),
    ("rule-03-unique-ids", "$.execution[1].id", lambda d: d["execution"].append(d["execution"][0])),
    (
        "rule-04-unique-resources",
        "$.resources.nodes[0].compute_units[1].id",
        lambda d: node(d)["compute_units"].append(unit(d)),
    ),
    (
        "rule-04-unique-resources",
        "$.resources.nodes[0].memory_resources[2].id",
        lambda d: node(d)["memory_resources"].append(node(d)["memory_resources"][0]),
    ),
    (
        "rule-05-environment",
        "$.resources.nodes[0].compute_units[0].device_uuid",
        lambda d: unit(d).update(device_uuid="GPU-2"),
    ),
    (
        "rule-05-environment",
        "$.resources.nodes[0].compute_units[0].device_uuid",
        lambda d: unit(d).update(device_uuid=None),
    ),
    (
        "rule-05-environment",
        "$.resources.nodes[0].compute_units[0].kind",
        lambda d: unit(d).update(kind="cpu"),
    ),
    (
        "rule-05-environment",
        "$.resources.nodes[0].compute_units[0].id",
        lambda d: unit(d).update(id="gpu1"),
    ),
    ("rule-05-environment", "$.resources.nodes[0].id", lambda d: node(d).update(id="node-b")),
    (
        "rule-05-environment",
        "$.resources.nodes[0].memory_resources[0].capacity_bytes",
        lambda d: node(d)["memory_resources"][0].update(capacity_bytes=12_485_525_503),
    ),
    (
        "rule-05-environment",
        "$.resources.nodes[0].memory_resources[1].kind",
        lambda d: node(d)["memory_resources"][1].update(kind="accelerator-vram"),
    ),
    (
        "rule-06-backing-source",
        "$.logical_state_units[0].backing_source_id",
        lambda d: d["logical_state_units"][0].update(backing_source_id="other"),
    ),
    (
        "rule-07-references",
        "$.materializations[0].memory_resource_id",
        lambda d: mat(d, 0, memory_resource_id="disk"),
    ),
    ("rule-07-references", "$.materializations[0].path_id", lambda d: mat(d, 0, path_id="none")),
    (
        "rule-07-references",
        "$.materializations[0].logical_state_id",
        lambda d: mat(d, 0, logical_state_id="state.none"),
    ),
    (
        "rule-08-representation",
        "$.materializations[2].representation",
        lambda d: mat(d, 2, representation="freetoken-native-device"),
    ),
    (
        "rule-09-staging",
        "$.materializations[0].persistence",
        lambda d: mat(d, 0, persistence="persistent"),
    ),
    (
        "rule-10-mutable-authority",
        "$.materializations[2].role",
        lambda d: mat(d, 2, role="mutable_authority"),
    ),
    (
        "rule-11-forbidden-copy",
        "$.materializations[2].memory_resource_id",
        lambda d: mat(d, 2, memory_resource_id="node-a.ram"),
    ),
    (
        "rule-12-capacity",
        "$.resources.nodes[0].memory_resources[0].capacity_bytes",
        lambda d: mat(d, 1, expected_bytes=1_689_347_736 + 2_094_143_849),
    ),
    (
        "rule-13-authority-references",
        "$.authorities[0].materialization_id",
        lambda d: d["authorities"][0].update(materialization_id="mat.none"),
    ),
    (
        "rule-13-authority-references",
        "$.authorities[0].logical_state_id",
        lambda d: d["authorities"][0].update(logical_state_id="state.none"),
    ),
    (
        "rule-14-one-lineage",
        "$.logical_state_units[2].id",
        lambda d: d["authorities"].append(dict(d["authorities"][0], lineage="second")),
    ),
    ("rule-14-one-lineage", "$.logical_state_units[2].id", lambda d: d["authorities"].clear()),
    (
        "rule-15-execution-unit",
        "$.execution[0].compute_unit_id",
        lambda d: d["execution"][0].update(compute_unit_id="gpu1"),
    ),
    (
        "rule-16-required-state",
        "$.execution[0].required_state[1]",
        lambda d: required(d)[1].update(representations=["checkpoint-native-host"]),
    ),
    (
        "rule-16-required-state",
        "$.execution[0].required_state[1]",
        lambda d: mat(d, 2, requirement="optional"),
    ),
    (
        "rule-16-required-state",
        "$.execution[0].required_state[1].memory_resources[0]",
        lambda d: required(d)[1].update(memory_resources=["node-a.ram"]),
    ),
    (
        "rule-17-strategy",
        "$.execution[0].strategy_unit",
        lambda d: d["execution"][0].update(strategy_unit="other"),
    ),
    (
        "transient-peak",
        "$.resources.nodes[0].memory_resources[1].capacity_bytes",
        lambda d: mat(d, 0, expected_bytes=134_984_794_113),
    ),
    (
        "reconstruction",
        "$.logical_state_units[3].reconstruction_inputs[0]",
        lambda d: d["logical_state_units"][3].update(reconstruction_inputs=["state.none"]),
    ),
    (
        "authority-state",
        "$.authorities[0].materialization_id",
        lambda d: d["authorities"][0].update(materialization_id="mat.replay.vram"),
    ),
    (
        "tensor-keys",
        "$.adapter_data.allowed_tensor_keys[100]",
        lambda d: d["adapter_data"]["allowed_tensor_keys"].append(
            d["adapter_data"]["allowed_tensor_keys"][7]
        ),
    ),
    (
        "memory-expectations",
        "$.memory_expectations.persistent_optional_bytes",
        lambda d: d["memory_expectations"].update(persistent_optional_bytes=1),
    ),
    (
        "links",
        "$.resources.links[1].target",
        lambda d: d["resources"]["links"][1].update(target="gpu1.vram"),
    ),
    ("paths", "$.materializations[1].path_id", lambda d: mat(d, 1, path_id="checkpoint-to-ram")),
]


@pytest.mark.parametrize(("rule", "path", "change"), CASES)
def test_a_broken_rule_is_found_at_its_place(
    short: Document,
    machine: Environment,
    rule: str,
    path: str,
    change: Callable[[Document], object],
) -> None:
    copied = copy.deepcopy(short)
    change(copied)
    findings = check(copied, machine)
    assert (rule, path) in {(finding.rule, finding.path) for finding in findings}


def test_each_of_the_seventeen_rules_is_broken_above() -> None:
    assert {rule[:7] for rule, _, _ in CASES if rule.startswith("rule-")} == {
        f"rule-{number:02}" for number in range(1, 18)
    }


def test_capacity_is_met_to_the_byte(short: Document) -> None:
    free = 12_485_525_504 - 10_391_381_656
    fits = copy.deepcopy(short)
    mat(fits, 1, expected_bytes=1_689_347_736 + free)
    assert check(fits, None) == []


def test_another_machine_is_refused(document: Document, published_result: dict[str, Any]) -> None:
    other = copy.deepcopy(published_result)
    there = other["resources"]["resources"]["nodes"][0]["compute_units"][0]
    assert there["device_uuid"] == UUID
    there["device_uuid"] = "GPU-2"
    findings = check(document, parse_environment(other, where="test"))
    assert [finding.path for finding in findings] == [
        "$.resources.nodes[0].compute_units[0].device_uuid"
    ]


def test_checking_loads_nothing_heavy(shared_r1: Path, tmp_path: Path, repo_root: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(gzip.decompress((shared_r1 / "frozen-plan.json.gz").read_bytes()))
    code = (
        "import sys; from pathlib import Path\n"
        "from harness.plan.check import check_file\n"
        "from harness.plan.environment import load_environment\n"
        "machine = load_environment(Path(sys.argv[2]))\n"
        "assert check_file(Path(sys.argv[1]), environment=machine)[1] == []\n"
        "print(sorted({'torch', 'numpy', 'pyarrow', 'hydra', 'rich'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(shared_r1 / "result.json")],
        cwd=repo_root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"

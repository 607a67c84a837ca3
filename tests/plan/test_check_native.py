"""Every rule is broken once on a native plan, and names the place."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from plan_sample import (
    DECISIVE,
    Document,
    FakeSupport,
    corrupted,
    entries,
    environment,
    file_of,
    loaded,
    manifest,
    native_document,
)

from harness.plan.check import NOT_EVALUABLE_RULES, check_file, check_plan
from harness.plan.load import LoadedPlan, parse_plan, sidecar_path
from harness.plan.manifest import manifest_path
from harness.plan.records import Finding

Change = Callable[[Document], object]
LIMIT = {"kind": "acceptance", "metric": "max_abs", "tensors": "logits", "limit": 0.5}


def check(document: Document) -> list[Finding]:
    return check_plan(
        loaded(document), environment=environment(), support=FakeSupport(), manifest=entries()
    )


def mat(document: Document, index: int, **fields: object) -> None:
    document["materializations"][index].update(fields)


def node(document: Document) -> Document:
    return document["resources"]["nodes"][0]


def required(document: Document) -> list[Document]:
    return document["execution"][0]["required_state"]


def cycle(document: Document) -> None:
    states = document["logical_state_units"]
    states[1]["reconstruction_inputs"] = ["state.replay-baseline"]
    states[3]["reconstruction_inputs"] = ["state.table"]


def window(document: Document, size: int, bound: int | None) -> None:
    mat(document, 0, representation="checkpoint-window", expected_bytes=size)
    if bound is not None:
        document["memory_allowances"]["staging_window_bytes"] = bound


def second_unit(document: Document) -> None:
    node(document)["compute_units"].append(dict(node(document)["compute_units"][0], id="second"))


def realize_spare(document: Document) -> None:
    mat(document, 5, realize=True)
    document["memory_expectations"]["persistent_optional_bytes"] = 32


def owner_of_another_state(document: Document) -> None:
    mat(document, 4, role="mutable_authority")
    document["authorities"][0]["materialization_id"] = "mat.replay.resident"


def unit_and_memory_unknown(document: Document) -> None:
    document["execution"][0]["compute_unit_id"] = "accelerator9"
    required(document)[0]["memory_resources"].append("disk")


def optional_state(document: Document) -> None:
    document["logical_state_units"].append(
        {
            "id": "state.idle",
            "semantic_class": "derived_reconstructible",
            "reconstruction_inputs": ["checkpoint", "state.table", "state.replay-baseline"],
        }
    )
    mat(document, 5, logical_state_id="state.idle")


def cycle_beside_an_input(document: Document) -> None:
    states = document["logical_state_units"]
    states[1]["reconstruction_inputs"] = ["state.cells", "state.replay-baseline"]
    states[3]["reconstruction_inputs"] = ["state.cells", "state.table"]


CASES: list[tuple[str, str, Change]] = [
    (
        "rule-01-identity",
        "$.adapter_data.spec.model_repository",
        lambda d: d["adapter_data"]["spec"].update(model_repository="x/y"),
    ),
    (
        "rule-01-identity",
        "$.adapter_data.spec.revision",
        lambda d: d["adapter_data"]["spec"].update(revision="r2"),
    ),
    (
        "rule-01-identity",
        "$.resources.backing_sources[0].revision",
        lambda d: d["resources"]["backing_sources"][0].update(revision="r2"),
    ),
    (
        "rule-01-identity",
        "$.resources.backing_sources[0].repository",
        lambda d: d["resources"]["backing_sources"][0].update(repository="x/y"),
    ),
    (
        "rule-01-identity",
        "$.adapter_data.spec.end_layer",
        lambda d: d["adapter_data"]["spec"].update(end_layer=0),
    ),
    ("rule-02-swarm", "$.resources.swarm_id", lambda d: d["resources"].update(swarm_id="other")),
    (
        "rule-03-unique-ids",
        "$.resources.nodes[1].id",
        lambda d: d["resources"]["nodes"].append(node(d)),
    ),
    (
        "rule-03-unique-ids",
        "$.logical_state_units[4].id",
        lambda d: d["logical_state_units"].append(d["logical_state_units"][0]),
    ),
    (
        "rule-03-unique-ids",
        "$.materializations[6].id",
        lambda d: d["materializations"].append(d["materializations"][0]),
    ),
    ("rule-03-unique-ids", "$.execution[1].id", lambda d: d["execution"].append(d["execution"][0])),
    (
        "rule-03-unique-ids",
        "$.resources.links[2].id",
        lambda d: d["resources"]["links"].append(d["resources"]["links"][0]),
    ),
    (
        "rule-03-unique-ids",
        "$.resources.backing_sources[1].id",
        lambda d: d["resources"]["backing_sources"].append(d["resources"]["backing_sources"][0]),
    ),
    (
        "rule-04-unique-resources",
        "$.resources.nodes[0].compute_units[1].id",
        lambda d: node(d)["compute_units"].append(node(d)["compute_units"][0]),
    ),
    (
        "rule-04-unique-resources",
        "$.resources.nodes[0].memory_resources[2].id",
        lambda d: node(d)["memory_resources"].append(node(d)["memory_resources"][0]),
    ),
    (
        "rule-04-unique-resources",
        "$.resources.nodes[1].memory_resources[0].id",
        lambda d: d["resources"]["nodes"].append(dict(node(d), id="node1")),
    ),
    (
        "rule-04-unique-resources",
        "$.resources.nodes[0].compute_units[0].memory_resources[2]",
        lambda d: node(d)["compute_units"][0]["memory_resources"].append("node0.ram"),
    ),
    (
        "rule-05-environment",
        "$.resources.nodes[0].compute_units[0]",
        lambda d: node(d)["compute_units"][0].update(kind="cuda-gpu"),
    ),
    (
        "rule-05-environment",
        "$.resources.nodes[0].compute_units[0]",
        lambda d: node(d)["compute_units"][0].update(device_uuid="GPU-1"),
    ),
    (
        "rule-05-environment",
        "$.resources.nodes[0].memory_resources[1]",
        lambda d: node(d)["memory_resources"][1].update(capacity_bytes=401),
    ),
    ("rule-05-environment", "$.resources.nodes", second_unit),
    (
        "rule-06-backing-source",
        "$.logical_state_units[0].backing_source_id",
        lambda d: d["logical_state_units"][0].update(backing_source_id="elsewhere"),
    ),
    (
        "rule-06-backing-source",
        "$.logical_state_units[0].backing_source_id",
        lambda d: d["logical_state_units"][0].pop("backing_source_id"),
    ),
    (
        "rule-07-references",
        "$.materializations[0].logical_state_id",
        lambda d: mat(d, 0, logical_state_id="state.none"),
    ),
    (
        "rule-07-references",
        "$.materializations[0].memory_resource_id",
        lambda d: mat(d, 0, memory_resource_id="disk"),
    ),
    ("rule-07-references", "$.materializations[0].path_id", lambda d: mat(d, 0, path_id="by-post")),
    (
        "rule-07-references",
        "$.resources.nodes[0].compute_units[0].memory_resources[1]",
        lambda d: node(d)["compute_units"][0]["memory_resources"].__setitem__(1, "disk"),
    ),
    (
        "rule-07-references",
        "$.forbidden_persistent_materializations[0].logical_state_id",
        lambda d: d["forbidden_persistent_materializations"][0].update(logical_state_id="none"),
    ),
    (
        "rule-07-references",
        "$.forbidden_persistent_materializations[0].memory_resource_id",
        lambda d: d["forbidden_persistent_materializations"][0].update(memory_resource_id="none"),
    ),
    (
        "rule-08-representation",
        "$.materializations[1].representation",
        lambda d: mat(d, 1, representation="folded"),
    ),
    (
        "rule-09-staging",
        "$.materializations[0].persistence",
        lambda d: mat(d, 0, persistence="persistent"),
    ),
    (
        "rule-09-staging",
        "$.materializations[2].persistence",
        lambda d: mat(d, 2, persistence="transient"),
    ),
    ("rule-09-staging", "$.materializations[0].role", lambda d: d["materializations"].pop(1)),
    (
        "rule-09-staging",
        "$.memory_allowances.staging_window_bytes",
        lambda d: d["memory_allowances"].update(staging_window_bytes=8),
    ),
    ("rule-09-staging", "$.materializations[0].expected_bytes", lambda d: window(d, 8, 9)),
    ("rule-09-staging", "$.materializations[0].expected_bytes", lambda d: window(d, 8, None)),
    (
        "rule-10-mutable-authority",
        "$.materializations[2].role",
        lambda d: mat(d, 2, role="mutable_authority"),
    ),
    (
        "rule-10-mutable-authority",
        "$.materializations[3].requirement",
        lambda d: mat(d, 3, requirement="optional"),
    ),
    (
        "rule-11-forbidden-copy",
        "$.materializations[1].memory_resource_id",
        lambda d: mat(d, 1, memory_resource_id="node0.ram"),
    ),
    (
        "rule-12-capacity",
        "$.resources.nodes[0].memory_resources[1].capacity_bytes",
        lambda d: node(d)["memory_resources"][1].update(capacity_bytes=299),
    ),
    (
        "rule-13-authority-references",
        "$.authorities[0].logical_state_id",
        lambda d: d["authorities"][0].update(logical_state_id="state.none"),
    ),
    (
        "rule-13-authority-references",
        "$.authorities[0].materialization_id",
        lambda d: d["authorities"][0].update(materialization_id="mat.none"),
    ),
    (
        "rule-14-one-lineage",
        "$.logical_state_units[2].id",
        lambda d: d["authorities"].append(dict(d["authorities"][0], lineage="second")),
    ),
    ("rule-14-one-lineage", "$.logical_state_units[2].id", lambda d: d["authorities"].clear()),
    (
        "rule-14-one-lineage",
        "$.authorities[1].lineage",
        lambda d: d["authorities"].append(d["authorities"][0]),
    ),
    (
        "rule-14-one-lineage",
        "$.authorities[0].lineage",
        lambda d: d["authorities"][0].update(lineage="copied"),
    ),
    (
        "rule-14-one-lineage",
        "$.logical_state_units[1].id",
        lambda d: d["authorities"][0].update(logical_state_id="state.table"),
    ),
    (
        "rule-15-execution-unit",
        "$.execution[0].compute_unit_id",
        lambda d: d["execution"][0].update(compute_unit_id="accelerator9"),
    ),
    (
        "rule-16-required-state",
        "$.execution[0].required_state[0]",
        lambda d: required(d)[0].update(representations=["checkpoint-native"]),
    ),
    (
        "rule-16-required-state",
        "$.execution[0].required_state[0]",
        lambda d: required(d)[0].update(memory_resources=["node0.ram"]),
    ),
    (
        "rule-16-required-state",
        "$.execution[0].required_state[0]",
        lambda d: mat(d, 1, requirement="optional", realize=True),
    ),
    (
        "rule-16-required-state",
        "$.execution[0].required_state[0]",
        lambda d: mat(d, 1, persistence="transient"),
    ),
    (
        "rule-16-required-state",
        "$.execution[0].required_state[0].logical_state_id",
        lambda d: required(d)[0].update(logical_state_id="state.none"),
    ),
    (
        "rule-16-required-state",
        "$.execution[0].required_state[2].logical_state_id",
        lambda d: required(d).append(required(d)[0]),
    ),
    (
        "rule-16-required-state",
        "$.execution[0].required_state[0].memory_resources[1]",
        lambda d: required(d)[0]["memory_resources"].append("disk"),
    ),
    (
        "rule-16-required-state",
        "$.execution[0].required_state[0].memory_resources[0]",
        lambda d: node(d)["compute_units"][0].update(memory_resources=["node0.ram"]),
    ),
    (
        "rule-17-strategy",
        "$.execution[0].strategy_unit",
        lambda d: d["execution"][0].update(strategy_unit="fake.run/2"),
    ),
    (
        "transient-peak",
        "$.resources.nodes[0].memory_resources[0].capacity_bytes",
        lambda d: node(d)["memory_resources"][0].update(capacity_bytes=75),
    ),
    (
        "memory-expectations",
        "$.memory_expectations.persistent_optional_bytes",
        lambda d: mat(d, 5, realize=True),
    ),
    (
        "memory-expectations",
        "$.memory_expectations.persistent_optional_bytes",
        lambda d: d["memory_expectations"].update(persistent_optional_bytes=32),
    ),
    (
        "reconstruction",
        "$.logical_state_units[1].reconstruction_inputs[0]",
        lambda d: d["logical_state_units"][1].update(reconstruction_inputs=["state.none"]),
    ),
    (
        "reconstruction",
        "$.logical_state_units[1].reconstruction_inputs",
        lambda d: d["logical_state_units"][1].update(reconstruction_inputs=["state.table"]),
    ),
    ("reconstruction", "$.logical_state_units[3].reconstruction_inputs", cycle),
    (
        "reconstruction",
        "$.logical_state_units[1].reconstruction_inputs",
        lambda d: d["logical_state_units"][1].pop("reconstruction_inputs"),
    ),
    (
        "reconstruction",
        "$.logical_state_units[2].reconstruction_inputs",
        lambda d: d["logical_state_units"][2].update(reconstruction_inputs=["checkpoint"]),
    ),
    (
        "state-coverage",
        "$.logical_state_units[4].id",
        lambda d: d["logical_state_units"].append(
            {
                "id": "state.idle",
                "semantic_class": "derived_reconstructible",
                "reconstruction_inputs": ["checkpoint"],
            }
        ),
    ),
    (
        "authority-state",
        "$.authorities[0].materialization_id",
        lambda d: d["authorities"][0].update(materialization_id="mat.bank.resident"),
    ),
    (
        "authority-state",
        "$.authorities[0].materialization_id",
        lambda d: mat(d, 3, role="required_residency"),
    ),
    (
        "authority-state",
        "$.materializations[4].role",
        lambda d: mat(d, 4, role="mutable_authority", logical_state_id="state.cells"),
    ),
    ("authority-state", "$.authorities[0].materialization_id", owner_of_another_state),
    (
        "rule-16-required-state",
        "$.execution[0].required_state[0].memory_resources[1]",
        unit_and_memory_unknown,
    ),
    (
        "rule-16-required-state",
        "$.execution[0].required_state[0]",
        lambda d: required(d)[0].update(representations=["table"]),
    ),
    (
        "rule-09-staging",
        "$.materializations[0].role",
        lambda d: mat(d, 1, requirement="optional"),
    ),
    (
        "rule-07-references",
        "$.materializations[3].logical_state_id",
        lambda d: mat(d, 3, logical_state_id="state.none"),
    ),
    ("reconstruction", "$.logical_state_units[3].reconstruction_inputs", cycle_beside_an_input),
    (
        "tensor-keys",
        "$.adapter_data.allowed_tensor_keys[1]",
        lambda d: d["adapter_data"].update(allowed_tensor_keys=["bank.a", "bank.a"]),
    ),
    (
        "tensor-keys",
        "$.adapter_data.allowed_tensor_keys[1]",
        lambda d: d["adapter_data"]["allowed_tensor_keys"].reverse(),
    ),
    (
        "links",
        "$.resources.links[0].source",
        lambda d: d["resources"]["links"][0].update(source="node0.ram"),
    ),
    (
        "links",
        "$.resources.links[1].source",
        lambda d: d["resources"]["links"][1].update(source="checkpoint"),
    ),
    (
        "links",
        "$.resources.links[1].source",
        lambda d: d["resources"]["links"][1].update(source="accelerator0.vram"),
    ),
    (
        "links",
        "$.resources.links[1].target",
        lambda d: d["resources"]["links"][1].update(target="disk"),
    ),
    (
        "links",
        "$.resources.links[1].target",
        lambda d: d["resources"]["links"][1].update(target="node0.ram"),
    ),
    (
        "paths",
        "$.materializations[0].path_id",
        lambda d: mat(d, 0, path_id="ram-to-device"),
    ),
    ("paths", "$.materializations[0].path_id", lambda d: d["materializations"][0].pop("path_id")),
    (
        "paths",
        "$.materializations[0].path_id",
        lambda d: d["logical_state_units"][0].update(backing_source_id="second"),
    ),
    ("roles", "$.materializations[5].requirement", lambda d: mat(d, 5, requirement="required")),
    ("roles", "$.materializations[1].realize", lambda d: mat(d, 1, realize=True)),
    (
        "checkpoint-files",
        "$.checkpoint.files[0].name",
        lambda d: d["checkpoint"]["files"][0].update(name="../part-1.bin"),
    ),
    (
        "checkpoint-files",
        "$.checkpoint.files[0].name",
        lambda d: d["checkpoint"]["files"][0].update(name="/part-1.bin"),
    ),
    (
        "checkpoint-files",
        "$.checkpoint.files[0].name",
        lambda d: d["checkpoint"]["files"][0].update(name="sub\\part-1.bin"),
    ),
    (
        "checkpoint-files",
        "$.checkpoint.files[0].sha256",
        lambda d: d["checkpoint"]["files"][0].update(sha256="sha256:" + "0" * 64 + "\n"),
    ),
    (
        "checkpoint-files",
        "$.checkpoint.files[3].name",
        lambda d: d["checkpoint"]["files"].append(d["checkpoint"]["files"][0]),
    ),
    ("checkpoint-files", "$.checkpoint.files", lambda d: d["checkpoint"]["files"].pop()),
    (
        "checkpoint-files",
        "$.checkpoint.files",
        lambda d: d["checkpoint"]["files"][0].update(size_bytes=63),
    ),
    (
        "checkpoint-source",
        "$.checkpoint.source.revision",
        lambda d: d["checkpoint"]["source"].update(revision="r2"),
    ),
    (
        "checkpoint-source",
        "$.checkpoint.source.repository",
        lambda d: d["checkpoint"]["source"].update(repository="x/y"),
    ),
    (
        "manifest",
        "$.checkpoint.manifest.num_tensors",
        lambda d: d["checkpoint"]["manifest"].update(num_tensors=3),
    ),
    (
        "manifest",
        "$.checkpoint.manifest.source_bytes",
        lambda d: d["checkpoint"]["manifest"].update(source_bytes=77),
    ),
    (
        "manifest",
        "$.checkpoint.manifest.expected_bytes",
        lambda d: d["checkpoint"]["manifest"].update(expected_bytes=139),
    ),
    ("manifest", "$.materializations[0].expected_bytes", lambda d: mat(d, 0, expected_bytes=75)),
    ("manifest", "$.materializations[1].expected_bytes", lambda d: mat(d, 1, expected_bytes=141)),
    (
        "manifest",
        "$.adapter_data.allowed_tensor_keys",
        lambda d: d["adapter_data"]["allowed_tensor_keys"].append("bank.c"),
    ),
    (
        "manifest",
        "$.adapter_data.allowed_tensor_keys",
        lambda d: d["adapter_data"]["allowed_tensor_keys"].pop(),
    ),
    (
        "manifest",
        "$.logical_state_units",
        lambda d: d["logical_state_units"][0].update(id="state.other"),
    ),
    ("workload", "$.workload.max_positions", lambda d: d["workload"].update(max_positions=6)),
    ("workload", "$.workload.max_positions", lambda d: d["workload"].update(decode_steps=5)),
    (
        "reference-fixture",
        "$.reference_fixture.dtype",
        lambda d: d["reference_fixture"].update(dtype="bfloat16"),
    ),
    (
        "reference-fixture",
        "$.reference_fixture.num_threads",
        lambda d: d["reference_fixture"].update(num_threads=1),
    ),
    (
        "reference-fixture",
        "$.reference_fixture.outputs",
        lambda d: d["reference_fixture"].update(outputs=["plane", "plane"]),
    ),
    (
        "reference-fixture",
        "$.reference_fixture.outputs",
        lambda d: d["reference_fixture"].update(outputs=["logits"]),
    ),
    (
        "reference-fixture",
        "$.reference_fixture.loader",
        lambda d: d["reference_fixture"].update(loader="selective"),
    ),
    (
        "checks",
        "$.checks.acceptance[0].limit",
        lambda d: d["checks"]["acceptance"][0].update(limit=1),
    ),
    (
        "checks",
        "$.checks.telemetry[0].limit",
        lambda d: d["checks"]["telemetry"][0].update(limit=1),
    ),
    (
        "checks",
        "$.checks.telemetry[1].limit",
        lambda d: d["checks"]["telemetry"].append({"id": "memory.resident", "limit": "1 GB"}),
    ),
    (
        "checks",
        "$.checks.acceptance[0].id",
        lambda d: d["checks"]["acceptance"][0].update(id="integrity.vibes"),
    ),
    (
        "checks",
        "$.checks.acceptance[0].id",
        lambda d: d["checks"]["acceptance"][0].update(id="memory.resident"),
    ),
    (
        "checks",
        "$.checks.telemetry[0].id",
        lambda d: d["checks"]["telemetry"][0].update(id="integrity.tables"),
    ),
    (
        "checks",
        "$.checks.acceptance[1].limit",
        lambda d: d["checks"]["acceptance"][1].update(limit=4095),
    ),
    (
        "checks",
        "$.checks.acceptance[1].limit",
        lambda d: d["checks"]["acceptance"][1].pop("limit"),
    ),
    (
        "workload",
        "$.workload.fresh_realizations",
        lambda d: d["workload"].update(fresh_realizations=11),
    ),
    (
        "checks",
        "$.checks.comparison[1].metric",
        lambda d: d["checks"].update(comparison=[LIMIT, LIMIT | {"limit": 2}]),
    ),
    (
        "checks",
        "$.checks.comparison[0].limit",
        lambda d: d["checks"].update(comparison=[LIMIT | {"metric": "top_k_overlap", "limit": 2}]),
    ),
]


def test_the_sample_breaks_no_rule() -> None:
    assert check(native_document()) == []


VALID: list[Change] = [
    realize_spare,
    lambda d: window(d, 8, 8),
    lambda d: mat(d, 5, path_id="checkpoint-to-ram"),
    lambda d: mat(d, 5, role="staging", persistence="transient", realize=True),
    lambda d: d["logical_state_units"][3].update(
        reconstruction_inputs=["state.cells", "state.table"]
    ),
    lambda d: d["checkpoint"].update(source={"kind": "directory", "path": "anywhere"}),
    lambda d: d["workload"].update(max_positions=8),
    lambda d: d["workload"].update(fresh_realizations=10),
    lambda d: d["checks"]["telemetry"].append({"id": "memory.resident", "limit": 1 << 30}),
    lambda d: d["checks"].update(telemetry=[]),
    lambda d: d["checks"].update(comparison=[LIMIT, LIMIT | {"tensors": "layers.*.q"}]),
    lambda d: d["reference_fixture"].update(outputs=["logits", "plane"]),
]


@pytest.mark.parametrize("allowed", VALID)
def test_other_valid_choices_break_no_rule(allowed: Change) -> None:
    assert check(corrupted(allowed)) == []


def test_a_state_may_have_an_optional_copy_only() -> None:
    document = corrupted(optional_state)
    support = check_plan(loaded(document), environment=None, support=None, manifest=entries())
    assert support == []


def test_the_reference_is_made_under_the_settings_of_the_run_whatever_is_checked() -> None:
    def change(document: Document) -> None:
        document["checks"]["acceptance"] = [{"id": "integrity.tables"}]
        document["reference_fixture"].update(dtype="bfloat16", num_threads=1, loader="other")

    found = {finding.path for finding in check(corrupted(change))}
    assert found - {"$.checks.acceptance"} == {
        "$.reference_fixture.dtype",
        "$.reference_fixture.num_threads",
        "$.reference_fixture.loader",
    }


@pytest.mark.parametrize("name", DECISIVE)
def test_no_check_that_decides_can_be_left_out(name: str) -> None:
    def change(document: Document) -> None:
        listed = document["checks"]["acceptance"]
        document["checks"]["acceptance"] = [each for each in listed if each["id"] != name]

    (finding,) = check(corrupted(change))
    assert (finding.path, finding.rule) == ("$.checks.acceptance", "checks")
    assert repr(name) in finding.message
    both = check(corrupted(lambda d: d["checks"].update(acceptance=[])))
    assert len(both) == len(DECISIVE)


def test_what_may_stay_unplanned_is_the_allowance_and_nothing_else() -> None:
    document = corrupted(
        lambda d: d["memory_expectations"].update(
            unplanned_persistent_bytes=1, unexplained_persistent_host_mirror_bytes=1 << 40
        )
    )
    assert [(finding.rule, finding.path) for finding in check(document)] == [
        ("memory-expectations", f"$.memory_expectations.{name}")
        for name in ("unexplained_persistent_host_mirror_bytes", "unplanned_persistent_bytes")
    ]


@pytest.mark.parametrize(
    ("ram_bytes", "realize", "rules"),
    [
        (76, False, set()),
        (75, False, {"transient-peak"}),
        (31, False, {"transient-peak"}),
        (108, True, set()),
        (107, True, {"transient-peak"}),
    ],
)
def test_only_required_persistent_bytes_must_fit_for_good(
    ram_bytes: int, realize: bool, rules: set[str]
) -> None:
    def change(document: Document) -> None:
        node(document)["memory_resources"][0]["capacity_bytes"] = ram_bytes
        if realize:
            realize_spare(document)

    assert {finding.rule for finding in check(corrupted(change))} == rules


@pytest.mark.parametrize(("rule", "path", "change"), CASES)
def test_a_broken_rule_is_found_at_its_place(rule: str, path: str, change: Change) -> None:
    findings = check(corrupted(change))
    assert (rule, path) in {(finding.rule, finding.path) for finding in findings}
    assert findings == sorted(findings)


def test_each_of_the_seventeen_rules_is_broken_above() -> None:
    assert {rule[:7] for rule, _, _ in CASES if rule.startswith("rule-")} == {
        f"rule-{number:02}" for number in range(1, 18)
    }


def test_all_errors_are_listed_at_once() -> None:
    def everything(document: Document) -> None:
        document["resources"]["swarm_id"] = "other"
        document["execution"][0]["strategy_unit"] = "fake.run/2"
        document["workload"]["max_positions"] = 6
        document["reference_fixture"]["num_threads"] = 1
        document["checks"]["acceptance"][0]["id"] = "integrity.vibes"
        mat(document, 1, expected_bytes=141, path_id="by-post")

    assert [finding.path for finding in check(corrupted(everything))] == [
        "$.checks.acceptance",
        "$.checks.acceptance[0].id",
        "$.execution[0].strategy_unit",
        "$.materializations[1].expected_bytes",
        "$.materializations[1].path_id",
        "$.reference_fixture.num_threads",
        "$.resources.swarm_id",
        "$.workload.max_positions",
    ]


def test_a_check_that_decides_cannot_be_declared_as_telemetry() -> None:
    def move(document: Document) -> None:
        document["checks"]["telemetry"].append(document["checks"]["acceptance"].pop(0))

    assert [finding.path for finding in check(corrupted(move))] == [
        "$.checks.acceptance",
        "$.checks.telemetry[1].id",
    ]


class PooledSupport(FakeSupport):
    """A family whose mutable state lies in pools."""

    acceptance_checks = ("state.ownership",)


def owned(listed: str, **more: object) -> LoadedPlan:
    """The sample with the check of its own declared in one of the two lists."""
    return loaded(
        corrupted(lambda d: d["checks"][listed].append({"id": "state.ownership", **more}))
    )


def test_a_check_that_a_family_asks_for_cannot_be_left_out_of_its_plans() -> None:
    def found(plan: LoadedPlan, support: FakeSupport | None = None) -> list[str]:
        support = support or PooledSupport()
        findings = check_plan(plan, environment=None, support=support, manifest=None)
        assert {finding.rule for finding in findings} <= {"checks"}
        return [finding.path for finding in findings]

    native = loaded(native_document())
    assert found(native) == ["$.checks.acceptance"]
    assert found(native, FakeSupport()) == []
    assert found(owned("acceptance")) == []
    assert found(owned("acceptance"), FakeSupport()) == []
    assert check_plan(owned("acceptance"), environment=None, support=None, manifest=None) == []
    assert found(owned("telemetry")) == ["$.checks.acceptance", "$.checks.telemetry[1].id"]
    last = len(DECISIVE)
    assert found(owned("acceptance", limit=1)) == [f"$.checks.acceptance[{last}].limit"]
    twice = corrupted(lambda d: d["checks"]["acceptance"].extend([{"id": "state.ownership"}] * 2))
    assert found(loaded(twice)) == [f"$.checks.acceptance[{last + 1}].id"]


def test_every_missing_tensor_is_named() -> None:
    document = corrupted(lambda d: d["adapter_data"].update(allowed_tensor_keys=[]))
    messages = [finding.message for finding in check(document)]
    assert sum("bank.a" in message for message in messages) == 1
    assert sum("bank.b" in message for message in messages) == 1


def test_what_is_not_given_is_not_checked() -> None:
    def spoil(document: Document) -> None:
        document["resources"]["swarm_id"] = "other"
        document["execution"][0]["strategy_unit"] = "fake.run/2"
        document["materializations"][1]["expected_bytes"] = 141

    plan = loaded(corrupted(spoil))
    assert check_plan(plan, environment=None, support=None, manifest=None) == []


def test_the_number_of_keys_is_checked_without_the_manifest() -> None:
    document = corrupted(lambda d: d["checkpoint"]["manifest"].update(num_tensors=3))
    findings = check_plan(loaded(document), environment=None, support=None, manifest=None)
    assert [finding.path for finding in findings] == ["$.checkpoint.manifest.num_tensors"]


def test_tensors_belong_to_a_state_that_comes_from_the_checkpoint() -> None:
    rows = [replace(row, logical_state_id="state.cells") for row in entries()]
    findings = check_plan(loaded(native_document()), environment=None, support=None, manifest=rows)
    assert any("'state.cells', no state with a backing" in finding.message for finding in findings)


def test_ambiguous_resources_are_not_bound() -> None:
    document = corrupted(lambda d: d["resources"]["nodes"].append(node(d)))
    rules = {finding.rule for finding in check(document)}
    assert rules == {"rule-03-unique-ids", "rule-04-unique-resources"}


def test_requirements_that_exclude_one_another_are_found() -> None:
    def two(nodes: list[Document], *uuids: str) -> None:
        units = [dict(nodes[0]["compute_units"][0], id=name) for name in ("a0", "a1")]
        for unit, uuid in zip(units, uuids, strict=True):
            unit.update(device_uuid=uuid)
        nodes[0]["compute_units"] = units

    def change(document: Document) -> None:
        two(document["resources"]["nodes"], "SIM-0", "SIM-0")
        document["execution"][0]["compute_unit_id"] = "a0"

    machine = environment(lambda r: two(r["nodes"], "SIM-0", "SIM-1"))
    findings = check_plan(
        loaded(corrupted(change)), environment=machine, support=None, manifest=None
    )
    assert [finding.path for finding in findings] == ["$.resources.nodes"]
    assert "not all of them together" in findings[0].message


def test_a_missing_machine_is_told_from_an_invalid_plan() -> None:
    document = native_document()
    small = environment(lambda r: r["nodes"][0]["memory_resources"][1].update(capacity_bytes=399))
    findings = check_plan(loaded(document), environment=small, support=None, manifest=None)
    assert {finding.rule for finding in findings} <= NOT_EVALUABLE_RULES
    assert findings


def write(folder: Path, document: Document) -> Path:
    path = folder / "sample.json"
    path.write_bytes(file_of(document))
    plan = parse_plan(file_of(native_document()), where="test").plan
    assert plan.checkpoint is not None
    target = manifest_path(folder, plan.checkpoint.manifest)
    target.parent.mkdir()
    target.write_bytes(manifest())
    return path


def test_a_file_is_checked_with_its_manifest(tmp_path: Path) -> None:
    path = write(tmp_path, native_document())
    plan, findings = check_file(
        path, environment=environment(), support_of=lambda plan: FakeSupport()
    )
    assert plan is not None
    assert findings == []


def test_a_file_with_faults_of_every_kind_lists_them_all(tmp_path: Path) -> None:
    document = corrupted(lambda d: d["execution"][0].update(strategy_unit="fake.run/2"))
    document["digest"] = native_document()["digest"]
    document["workload"]["max_positions"] = 6
    path = write(tmp_path, document)
    sidecar_path(path).write_text("nonsense\n")
    for file in (tmp_path / "manifests").iterdir():
        file.write_bytes(file.read_bytes()[:-2])
    _, findings = check_file(path, support_of=lambda plan: FakeSupport())
    assert [(finding.path, finding.rule) for finding in findings] == [
        ("$", "sidecar"),
        ("$.checkpoint.manifest", "manifest"),
        ("$.digest", "rule-01-identity"),
        ("$.execution[0].strategy_unit", "rule-17-strategy"),
        ("$.workload.max_positions", "workload"),
    ]


def test_a_missing_manifest_is_a_finding(tmp_path: Path) -> None:
    path = write(tmp_path, native_document())
    for file in (tmp_path / "manifests").iterdir():
        file.unlink()
    _, findings = check_file(path)
    assert [finding.path for finding in findings] == ["$.checkpoint.manifest"]

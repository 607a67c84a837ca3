"""Deriving with a small family of two states from the checkpoint and three beside it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from plan_sample import ZERO, Document, environment, resources

from harness.errors import CheckpointError, PlanError, ResourceError
from harness.plan.checks import ACCEPTANCE, TELEMETRY, default_checks
from harness.plan.derive import DeriveRequest, derive
from harness.plan.documents import from_document
from harness.plan.format import plan_digest, plan_file_bytes
from harness.plan.layout import (
    CHECKPOINT_NATIVE,
    CHECKPOINT_WINDOW,
    REFERENCE_OUTPUTS,
    STATE_SNAPSHOT,
    CensusEntry,
    LayoutRequest,
    LeftOut,
    StateDesign,
    TensorSpec,
)
from harness.plan.load import parse_plan
from harness.plan.manifest import parse_manifest
from harness.plan.records import (
    CheckpointFile,
    Determinism,
    FixtureRecipe,
    MemoryAllowances,
    ModelRange,
    Resources,
    Scope,
    TimeoutsS,
    Workload,
)
from harness.plan.request import layout_request, planned_tensors

MIB = 1 << 20


class FakeLayout:
    """Two stored tensors, resident as float32; a table; cells of one float32 a position."""

    family = "fake"
    strategy_units = frozenset({"fake.run/1"})
    boundaries_version = "fake.boundaries/1"
    acceptance_checks = ()
    eviction_policies = frozenset()

    def parse_config(self, document: Mapping[str, Any]) -> dict[str, Any]:
        return dict(document)

    def tensor_keys(
        self,
        config: Mapping[str, Any],
        spec: ModelRange,
        representations: Mapping[str, str] | None = None,
    ) -> tuple[str, ...]:
        return ("bank.a", "bank.b")

    def account(
        self,
        config: Mapping[str, Any],
        spec: ModelRange,
        census: Sequence[CensusEntry],
        representations: Mapping[str, str] | None = None,
    ) -> tuple[LeftOut, ...]:
        unknown = [entry.key for entry in census if entry.key == "bank.c"]
        if unknown:
            raise PlanError("the checkpoint holds what is not known", got=", ".join(unknown))
        return ()

    def states(self, request: LayoutRequest) -> tuple[StateDesign, ...]:
        staging = {"whole": CHECKPOINT_NATIVE, "streaming": CHECKPOINT_WINDOW, "none": None}
        bank = StateDesign(
            id="state.bank",
            semantic_class="immutable_source",
            from_checkpoint=True,
            reconstruction_inputs=None,
            tensor_keys=("bank.a", "bank.b"),
            staging_representation=staging[request.staging],
            representation="merged",
            role="required_residency",
            on_device=True,
            forbidden_on_host=True,
            required_by_execution=True,
        )
        derived = replace(
            bank,
            semantic_class="derived_reconstructible",
            from_checkpoint=False,
            tensor_keys=(),
            staging_representation=None,
            forbidden_on_host=False,
        )
        return (
            bank,
            replace(
                derived,
                id="state.table",
                representation="table",
                reconstruction_inputs=("checkpoint",),
            ),
            replace(
                derived,
                id="state.cells",
                semantic_class="mutable_authoritative",
                representation="cells",
                role="mutable_authority",
            ),
            replace(
                derived,
                id="state.replay-baseline",
                representation=STATE_SNAPSHOT,
                reconstruction_inputs=("state.cells",),
                role="required_test_state",
                required_by_execution=False,
            ),
            replace(
                derived,
                id="state.reference-fixture",
                representation=REFERENCE_OUTPUTS,
                reconstruction_inputs=("state.bank",),
                role="required_test_state",
                on_device=False,
                required_by_execution=False,
            ),
        )

    def supports_representation(self, logical_state_id: str, representation: str) -> bool:
        return True

    def tensors(
        self,
        request: LayoutRequest,
        logical_state_id: str,
        representation: str,
        census: Sequence[CensusEntry],
    ) -> tuple[TensorSpec, ...]:
        cells = TensorSpec(name="cells", dtype="float32", shape=(request.workload.max_positions,))
        return {
            CHECKPOINT_NATIVE: tuple(
                TensorSpec(name=row.key, dtype=row.dtype, shape=row.shape) for row in census
            ),
            CHECKPOINT_WINDOW: (
                TensorSpec(name="w", dtype="uint8", shape=(request.staging_window_bytes or 0,)),
            ),
            "merged": tuple(
                TensorSpec(name=row.key, dtype="float32", shape=row.shape) for row in census
            ),
            "table": (TensorSpec(name="table", dtype="float32", shape=(8,)),),
            "cells": (cells,),
            STATE_SNAPSHOT: (cells,),
            REFERENCE_OUTPUTS: (TensorSpec(name="prefill.plane", dtype="float32", shape=(3, 4)),),
        }[representation]

    def expected_bytes_by_key(
        self, request: LayoutRequest, census: Sequence[CensusEntry]
    ) -> dict[str, int]:
        return {"bank.a": 128, "bank.b": 12}

    def boundaries(self, config: Mapping[str, Any], spec: ModelRange) -> tuple[str, ...]:
        return ()


def census() -> tuple[CensusEntry, ...]:
    rows = (("idle", "float32", (9,), 36), ("bank.b", "float32", (3,), 12))
    rows += (("bank.a", "bfloat16", (4, 8), 64),)
    return tuple(
        CensusEntry(
            key=key,
            dtype=dtype,
            shape=shape,
            file="model.bin",
            source_bytes=size,
            sha256=ZERO,
            digest_source="measured",
        )
        for key, dtype, shape, size in rows
    )


def large(document: Document) -> None:
    for memory in document["nodes"][0]["memory_resources"]:
        memory["capacity_bytes"] = 64 * MIB
    # What a plan does not use it must not ask for.
    document["nodes"][0]["memory_resources"].append(
        {"id": "spare.vram", "kind": "simulated-vram", "capacity_bytes": MIB}
    )
    unit = document["nodes"][0]["compute_units"][0]
    unit["memory_resources"].append("spare.vram")
    unit["device_uuid"] = "SIM-0"
    document["nodes"][0]["compute_units"].append(
        {"id": "cpu0", "kind": "cpu", "device_uuid": None, "memory_resources": ["node0.ram"]}
    )


def request(*, staging: str = "whole", **changes: Any) -> DeriveRequest:
    allowances = MemoryAllowances(unplanned_host_bytes=2 * MIB)
    spec = ModelRange(
        start_layer=0,
        end_layer=2,
        owns_embeddings=True,
        owns_final_norm_head=True,
        model_repository="nobody/fake",
        revision="r1",
    )
    determinism = Determinism(
        dtype="float32",
        num_threads=2,
        deterministic_algorithms=True,
        batch_invariant=True,
        kernel_set="torch-cpu/1",
    )
    workload = Workload(
        prompt_token_ids=(1, 2, 3),
        chunk_rows=2,
        decode_steps=4,
        repetitions=2,
        fresh_realizations=2,
        sampling="greedy",
        max_positions=16,
    )
    whole = DeriveRequest(
        plan_version="fake-1",
        model_repository="nobody/fake",
        model_revision="r1",
        checkpoint_source={"kind": "hub", "repository": "nobody/fake", "revision": "r1"},
        checkpoint_files=(CheckpointFile(name="model.bin", size_bytes=200, sha256=ZERO),),
        census=census(),
        layout=FakeLayout(),
        layout_request=LayoutRequest(
            config={"size": 8},
            spec=spec,
            determinism=determinism,
            workload=workload,
            staging=staging,
            staging_window_bytes=64,
        ),
        resources=environment(large).resources,
        compute_unit_id="accelerator0",
        device_memory_id="accelerator0.vram",
        host_memory_id="node0.ram",
        reference_fixture=FixtureRecipe(
            loader="unselective-safetensors",
            outputs=("plane", "logits"),
            dtype="float32",
            num_threads=2,
        ),
        checks=default_checks(allowances),
        timeouts=TimeoutsS(fixture_s=1, realization_s=2, audit_s=3),
        memory_allowances=allowances,
        scope=Scope(proves=("it fits",), does_not_prove=("it is fast",)),
    )
    return replace(whole, **changes)


def summary(document: Document) -> list[tuple[Any, ...]]:
    names = ("id", "representation", "memory_resource_id", "expected_bytes", "role", "persistence")
    return [
        (*(item[name] for name in names), item.get("path_id"))
        for item in document["materializations"]
    ]


RAM, VRAM = "node0.ram", "accelerator0.vram"
PERSISTENT = [
    ("mat.bank.resident", "merged", VRAM, 140, "required_residency", "persistent", "ram-to-device"),
    ("mat.table.resident", "table", VRAM, 32, "required_residency", "persistent", None),
    ("mat.cells.resident", "cells", VRAM, 64, "mutable_authority", "persistent", None),
    ("mat.replay.resident", "state-snapshot", VRAM, 64, "required_test_state", "persistent", None),
    ("mat.fixture.host", "reference-outputs", RAM, 48, "required_test_state", "persistent", None),
]
STAGE = ("mat.bank.stage", "checkpoint-native", RAM, 76, "staging", "transient")


def test_a_staged_plan_has_every_materialization_with_exact_bytes() -> None:
    document, manifest = derive(request())
    assert summary(document) == [(*STAGE, "checkpoint-to-ram"), *PERSISTENT]
    assert document["forbidden_persistent_materializations"] == [
        {"logical_state_id": "state.bank", "memory_resource_id": RAM}
    ]
    assert document["authorities"] == [
        {
            "logical_state_id": "state.cells",
            "materialization_id": "mat.cells.resident",
            "lineage": "state.cells@epoch-1",
        }
    ]
    (execution,) = document["execution"]
    assert (execution["id"], execution["strategy_unit"]) == ("exec.model", "fake.run/1")
    assert [item["logical_state_id"] for item in execution["required_state"]] == [
        "state.bank",
        "state.table",
        "state.cells",
    ]
    assert [link["id"] for link in document["resources"]["links"]] == [
        "checkpoint-to-ram",
        "ram-to-device",
    ]
    assert document["logical_state_units"][0] == {
        "id": "state.bank",
        "semantic_class": "immutable_source",
        "backing_source_id": "checkpoint",
    }
    assert document["adapter_data"]["allowed_tensor_keys"] == ["bank.a", "bank.b"]
    assert document["checkpoint"]["manifest"]["source_bytes"] == 76
    assert document["checkpoint"]["manifest"]["expected_bytes"] == 140
    rows = parse_manifest(manifest, where="test")
    assert [(row.key, row.logical_state_id, row.expected_bytes) for row in rows] == [
        ("bank.a", "state.bank", 128),
        ("bank.b", "state.bank", 12),
    ]
    assert rows[0].sha256 == ZERO


def test_the_document_is_complete_and_names_itself() -> None:
    document, _ = derive(request())
    assert document["digest"] == plan_digest(document)
    assert parse_plan(plan_file_bytes(document), where="test").document == document
    assert "null" not in json.dumps({**document, "resources": {}})
    assert "eviction_policy" not in document
    assert "staging_window_bytes" not in document["memory_allowances"]


def test_deriving_is_pure() -> None:
    first, second = derive(request()), derive(request())
    assert first == second
    assert plan_file_bytes(first[0]) == plan_file_bytes(second[0])


def test_streaming_stages_a_window_of_its_bound() -> None:
    document, _ = derive(request(staging="streaming"))
    assert summary(document)[0] == (
        "mat.bank.stage",
        "checkpoint-window",
        RAM,
        64,
        "staging",
        "transient",
        "checkpoint-to-ram",
    )
    assert document["memory_allowances"]["staging_window_bytes"] == 64


@pytest.mark.parametrize("staging", ["whole", "streaming", "none"])
def test_one_memory_needs_no_staging(staging: str) -> None:
    document, _ = derive(
        request(staging=staging, compute_unit_id="cpu0", device_memory_id="node0.ram")
    )
    assert summary(document)[0] == (
        "mat.bank.resident",
        "merged",
        RAM,
        140,
        "required_residency",
        "persistent",
        "checkpoint-to-ram",
    )
    assert {item["memory_resource_id"] for item in document["materializations"]} == {RAM}
    assert document["forbidden_persistent_materializations"] == []
    assert [link["id"] for link in document["resources"]["links"]] == ["checkpoint-to-ram"]
    assert "staging_window_bytes" not in document["memory_allowances"]


def test_a_plan_asks_only_for_what_it_uses() -> None:
    document, _ = derive(request())
    (node,) = document["resources"]["nodes"]
    assert node["compute_units"] == [
        {
            "id": "accelerator0",
            "kind": "simulated-accelerator",
            "device_uuid": None,
            "memory_resources": [RAM, VRAM],
        }
    ]
    # Arenas of whole 64 KiB, and the host's allowance of 2 MiB; rounded up to whole MiB.
    assert [(item["id"], item["capacity_bytes"]) for item in node["memory_resources"]] == [
        (RAM, 3 * MIB),
        (VRAM, 1 * MIB),
    ]
    pinned, _ = derive(request(pin_device=True))
    assert pinned["resources"]["nodes"][0]["compute_units"][0]["device_uuid"] == "SIM-0"


def test_arenas_count_with_their_padding() -> None:
    wide = request()
    tight = replace(
        wide.layout_request, workload=replace(wide.layout_request.workload, max_positions=131_024)
    )
    # Cells and snapshot of 524,096 bytes take 8 granules each, bank and table one each; the
    # bare sum would fit into 1 MiB.
    document, _ = derive(replace(wide, layout_request=tight))
    memories = document["resources"]["nodes"][0]["memory_resources"]
    assert memories[1]["capacity_bytes"] == 2 * MIB


class ManyTensors(FakeLayout):
    def tensors(
        self,
        request: LayoutRequest,
        logical_state_id: str,
        representation: str,
        census: Sequence[CensusEntry],
    ) -> tuple[TensorSpec, ...]:
        if representation == "table":
            one = TensorSpec(name="t", dtype="uint8", shape=(1,))
            return tuple(replace(one, name=f"t{index}") for index in range(16_385))
        return super().tensors(request, logical_state_id, representation, census)


def test_tensors_count_with_their_alignment() -> None:
    document, _ = derive(request(layout=ManyTensors()))
    assert document["materializations"][2]["expected_bytes"] == 16_385
    memories = document["resources"]["nodes"][0]["memory_resources"]
    assert memories[1]["capacity_bytes"] == 2 * MIB  # 16,385 x 64 bytes are more than 1 MiB


def test_a_memory_that_is_too_small_is_told() -> None:
    small = from_document(Resources, resources())
    with pytest.raises(ResourceError, match=r"does not fit memory node0\.ram"):
        derive(request(resources=small))


@pytest.mark.parametrize(
    "wrong",
    [
        {"compute_unit_id": "gpu7"},
        {"device_memory_id": "gpu7.vram"},
        {"host_memory_id": "disk"},
        {"compute_unit_id": "cpu0"},
    ],
)
def test_resources_that_do_not_exist_are_told(wrong: dict[str, str]) -> None:
    with pytest.raises(ResourceError, match="compute unit"):
        derive(request(**wrong))


def test_every_missing_tensor_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"bank\.a, bank\.b"):
        derive(request(census=census()[:1]))


def test_a_tensor_that_nobody_needs_is_accounted_for() -> None:
    idle, *_ = census()
    with pytest.raises(PlanError, match=r"not known\n.*bank\.c"):
        derive(request(census=(*census(), replace(idle, key="bank.c"))))
    derive(request(census=(*census(), replace(idle, key="bank.d"))))


def test_contradictions_are_found_before_anybody_sees_the_plan() -> None:
    long_decode = replace(
        request().layout_request,
        workload=replace(request().layout_request.workload, decode_steps=14),
    )
    with pytest.raises(PlanError, match="max_positions"):
        derive(request(layout_request=long_decode))
    with pytest.raises(PlanError, match=r"checkpoint\.source"):
        derive(request(checkpoint_source={"kind": "hub", "repository": "x/y", "revision": "r1"}))


class Miscounting(FakeLayout):
    def expected_bytes_by_key(
        self, request: LayoutRequest, census: Sequence[CensusEntry]
    ) -> dict[str, int]:
        return {"bank.a": 127, "bank.b": 12}


class Forgetting(FakeLayout):
    def states(self, request: LayoutRequest) -> tuple[StateDesign, ...]:
        bank, *rest = super().states(request)
        return (replace(bank, tensor_keys=("bank.a",)), *rest)


class Undecided(FakeLayout):
    strategy_units = frozenset({"fake.run/1", "fake.run/2"})


class Misnaming(FakeLayout):
    def states(self, request: LayoutRequest) -> tuple[StateDesign, ...]:
        bank, *rest = super().states(request)
        return (replace(bank, role="resident"), *rest)


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (Miscounting(), "expected bytes 139"),
        (Forgetting(), "exactly one state"),
        (Undecided(), "strategy_unit"),
        (Misnaming(), r"materializations\[1\]\.role"),
    ],
)
def test_a_layout_that_contradicts_itself_is_refused(layout: FakeLayout, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        derive(request(layout=layout))


def test_one_of_several_executions_is_chosen() -> None:
    document, _ = derive(request(layout=Undecided(), strategy_unit="fake.run/2"))
    assert document["execution"][0]["strategy_unit"] == "fake.run/2"
    with pytest.raises(PlanError, match="rule-17"):
        derive(request(layout=Undecided(), strategy_unit="fake.run/3"))


def test_every_check_is_declared_by_default() -> None:
    checks = default_checks(MemoryAllowances(unplanned_host_bytes=7))
    assert [check.id for check in checks.acceptance] == list(ACCEPTANCE)
    assert [check.id for check in checks.telemetry] == list(TELEMETRY)
    assert {check.id: check.limit for check in checks.acceptance if check.limit is not None} == {
        "memory.unplanned": 7
    }


def test_checks_of_a_family_stand_behind_those_of_every_plan() -> None:
    checks = default_checks(MemoryAllowances(unplanned_host_bytes=7), ("state.ownership",))
    assert [check.id for check in checks.acceptance] == [*ACCEPTANCE, "state.ownership"]
    assert checks.acceptance[-1].limit is None
    assert [check.id for check in checks.telemetry] == list(TELEMETRY)


def asking(**fields: Any) -> Any:
    """A request whose layout is asked for more."""
    return replace(request(), layout_request=replace(request().layout_request, **fields))


def test_a_policy_and_chosen_forms_are_read_back_as_they_were_asked() -> None:
    plain, _ = derive(request())
    assert "eviction_policy" not in plain
    document, _ = derive(asking(eviction_policy="let-go/1"))
    assert document["eviction_policy"] == "let-go/1"
    assert layout_request(parse_plan(plan_file_bytes(document), where="test").plan) == replace(
        layout_request(parse_plan(plan_file_bytes(plain), where="test").plan),
        eviction_policy="let-go/1",
    )
    forms = {
        item["logical_state_id"]: item["representation"]
        for item in plain["materializations"]
        if item["persistence"] == "persistent"
    }
    again = layout_request(parse_plan(plan_file_bytes(plain), where="test").plan)
    assert again.representations == forms
    # Asking for what a family does by itself is no other plan.
    assert derive(asking(representations=forms)) == derive(request())


class TwoForms(FakeLayout):
    """One representation name that is another set of tensors for another state."""

    def states(self, request: LayoutRequest) -> tuple[StateDesign, ...]:
        return tuple(
            replace(design, representation="cells") if design.id == "state.table" else design
            for design in super().states(request)
        )

    def tensors(
        self,
        request: LayoutRequest,
        logical_state_id: str,
        representation: str,
        census: Sequence[CensusEntry],
    ) -> tuple[TensorSpec, ...]:
        if logical_state_id == "state.table":
            return (TensorSpec(name="t", dtype="uint8", shape=(5,)),)
        return super().tensors(request, logical_state_id, representation, census)


def test_a_form_belongs_to_its_state() -> None:
    document, manifest = derive(request(layout=TwoForms()))
    sizes = {
        item["logical_state_id"]: item["expected_bytes"]
        for item in document["materializations"]
        if item["representation"] == "cells"
    }
    assert sizes["state.table"] == 5
    assert sizes["state.cells"] != 5
    plan = parse_plan(plan_file_bytes(document), where="test").plan
    known = planned_tensors(plan, TwoForms(), parse_manifest(manifest, where="test"))
    assert known["state.table", "cells"] != known["state.cells", "cells"]
    for item in plan.materializations:
        specs = known[item.logical_state_id, item.representation]
        assert sum(spec.num_bytes for spec in specs) == item.expected_bytes


@pytest.mark.parametrize("staging", ["whole", "streaming"])
def test_what_was_asked_of_the_layout_is_read_back_from_the_plan(staging: str) -> None:
    document, manifest = derive(request(staging=staging))
    plan = parse_plan(plan_file_bytes(document), where="test").plan
    rows = parse_manifest(manifest, where="test")
    again = layout_request(plan)
    assert again.staging == staging
    assert again.workload == request().layout_request.workload
    sizes = {
        name: sum(spec.num_bytes for spec in specs)
        for (_, name), specs in planned_tensors(plan, FakeLayout(), rows).items()
    }
    assert all(sizes[item.representation] == item.expected_bytes for item in plan.materializations)

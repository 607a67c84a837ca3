"""The published plan's figures, byte for byte, from headers alone."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import qwen_real

from harness.adapters.qwen3_5_moe.layout import COMMON, ROUTED, RUNTIME, QwenLayout
from harness.adapters.qwen3_5_moe.published_forms import published_figures, unfetched_keys
from harness.checkpoint.census import census
from harness.plan.checks import default_checks
from harness.plan.derive import DeriveRequest, derive
from harness.plan.format import plan_file_bytes
from harness.plan.layout import CensusEntry, LayoutRequest
from harness.plan.load import parse_plan
from harness.plan.manifest import ManifestEntry, parse_manifest
from harness.plan.records import (
    CheckpointFile,
    ComputeUnit,
    Determinism,
    FixtureRecipe,
    MemoryAllowances,
    MemoryResource,
    ModelRange,
    Node,
    Plan,
    Resources,
    Scope,
    TimeoutsS,
    Workload,
)

REPOSITORY = "nvidia/Qwen3.6-35B-A3B-NVFP4"
REVISION = "491c2f1ea524c639598bf8fa787a93fed5a6fbce"
PUBLISHED = {
    COMMON: "freetoken-native-device",
    ROUTED: "freetoken-nvfp4-slot-banks",
    RUNTIME: "freetoken-block-runtime-device",
}
BLOCK_A = ModelRange(
    start_layer=0,
    end_layer=19,
    owns_embeddings=True,
    owns_final_norm_head=False,
    model_repository=REPOSITORY,
    revision=REVISION,
)
RESOURCES = Resources(
    swarm_id="local",
    nodes=(
        Node(
            id="node0",
            compute_units=(
                ComputeUnit(
                    id="accelerator0",
                    kind="simulated-accelerator",
                    device_uuid=None,
                    memory_resources=("accelerator0.vram", "node0.ram"),
                ),
            ),
            memory_resources=(
                MemoryResource(
                    id="accelerator0.vram", kind="simulated-vram", capacity_bytes=12_485_525_504
                ),
                MemoryResource(id="node0.ram", kind="system-ram", capacity_bytes=16 << 30),
            ),
        ),
    ),
)


@dataclass(frozen=True)
class Real:
    """The published checkpoint's headers, and its normalized configuration."""

    folder: Path
    census: tuple[CensusEntry, ...]
    config: dict[str, Any]
    layout: QwenLayout

    def request(self, spec: ModelRange = BLOCK_A, **changes: Any) -> LayoutRequest:
        whole = LayoutRequest(
            config=self.config,
            spec=spec,
            determinism=Determinism(
                dtype="bfloat16",
                num_threads=2,
                deterministic_algorithms=True,
                batch_invariant=False,
                kernel_set="torch-cpu/1",
            ),
            workload=Workload(
                prompt_token_ids=(1, 2, 3, 4, 5, 6),
                chunk_rows=64,
                decode_steps=4,
                repetitions=4,
                fresh_realizations=1,
                sampling="greedy",
                max_positions=64,
                decode_token_ids=(7, 8, 9, 10),
            ),
            staging="whole",
            representations=PUBLISHED,
        )
        return replace(whole, **changes)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("published")
    qwen_real.write_headers(folder)
    layout = QwenLayout()
    config = layout.parse_config(json.loads((folder / "config.json").read_text()))
    yield Real(folder, census(folder), config, layout)
    for file in folder.iterdir():
        file.unlink()


@pytest.fixture(scope="module")
def block_a(real: Real) -> tuple[Plan, tuple[ManifestEntry, ...]]:
    """A plan derived for the published range in the published forms, and its manifest."""
    allowances = MemoryAllowances(unplanned_host_bytes=1 << 20)
    names = sorted({entry.file for entry in real.census})
    document, manifest = derive(
        DeriveRequest(
            plan_version="block-a-1",
            model_repository=REPOSITORY,
            model_revision=REVISION,
            checkpoint_source={"kind": "hub", "repository": REPOSITORY, "revision": REVISION},
            checkpoint_files=tuple(
                CheckpointFile(
                    name=name,
                    size_bytes=(real.folder / name).stat().st_size,
                    sha256="sha256:" + "0" * 64,
                )
                for name in names
            ),
            census=real.census,
            layout=real.layout,
            layout_request=real.request(),
            resources=RESOURCES,
            compute_unit_id="accelerator0",
            device_memory_id="accelerator0.vram",
            host_memory_id="node0.ram",
            reference_fixture=FixtureRecipe(
                loader="unselective-safetensors",
                outputs=("plane",),
                dtype="bfloat16",
                num_threads=2,
            ),
            checks=default_checks(allowances, real.layout.acceptance_checks),
            timeouts=TimeoutsS(fixture_s=600, realization_s=900, audit_s=300),
            memory_allowances=allowances,
            scope=Scope(proves=("bytes",), does_not_prove=("bits",)),
        )
    )
    plan = parse_plan(plan_file_bytes(document), where="derived").plan
    return plan, parse_manifest(manifest, where="derived")


@pytest.mark.slow
def test_the_plan_has_the_published_bytes(
    block_a: tuple[Plan, tuple[ManifestEntry, ...]],
) -> None:
    plan, manifest = block_a
    planned = [
        (item.representation, item.expected_bytes, item.persistence)
        for item in plan.materializations
    ]
    assert planned == [
        ("checkpoint-native-host", 8_636_596_224, "transient"),
        ("freetoken-native-device", 1_689_347_736, "persistent"),
        ("freetoken-nvfp4-slot-banks", 8_636_596_224, "persistent"),
        ("freetoken-block-runtime-device", 32_718_848, "persistent"),
        ("state-snapshot", 32_718_848, "persistent"),
        # In system RAM: planes of 6 and 4 rows.
        ("reference-outputs", 10 * 4096, "persistent"),
    ]
    figures = published_figures(plan, manifest)
    assert figures.staging_bytes == 8_636_596_224
    assert figures.persistent_bytes == {
        COMMON: 1_689_347_736,
        ROUTED: 8_636_596_224,
        RUNTIME: 32_718_848,
        "state.replay-baseline": 32_718_848,
    }
    assert figures.required_persistent_bytes == 10_391_381_656
    assert figures.num_planned_keys == 44_362
    assert len(figures.unfetched_keys) == 57
    assert figures.fetched_bytes == 10_294_959_436
    assert figures.transient_upper_bound_bytes == 18_931_555_660
    assert figures.label == "calculated"
    # What fetching every planned key would give.
    everything = sum(entry.source_bytes for entry in manifest)
    assert figures.staging_bytes + everything == 18_931_555_888
    device = {m.id: m.capacity_bytes for n in plan.resources.nodes for m in n.memory_resources}
    assert device["accelerator0.vram"] < 12_485_525_504


@pytest.mark.slow
def test_the_plan_has_the_published_keys(
    block_a: tuple[Plan, tuple[ManifestEntry, ...]], shared_r1: Path
) -> None:
    plan, _ = block_a
    published = json.loads(gzip.decompress((shared_r1 / "frozen-plan.json.gz").read_bytes()))
    keys = published["adapter_data"]["allowed_tensor_keys"]
    assert set(plan.adapter_data.allowed_tensor_keys) == set(keys)
    assert len(plan.adapter_data.allowed_tensor_keys) == len(keys)
    assert len(unfetched_keys(keys)) == 57
    by_id = {item["id"]: item for item in published["materializations"]}
    ours = {item.representation: item for item in plan.materializations}
    for name in (
        "mat.routed.ram-stage",
        "mat.non-routed.vram",
        "mat.routed.vram",
        "mat.runtime.vram",
    ):
        item = by_id[name]
        same = ours[item["representation"]]
        assert same.expected_bytes == item["expected_bytes"]
        assert (same.role, same.persistence) == (item["role"], item["persistence"])


@pytest.mark.slow
def test_every_tensor_of_the_whole_checkpoint_is_accounted_for(real: Real) -> None:
    account = real.layout.account(real.config, BLOCK_A, real.census, PUBLISHED)
    counts = {item.rule: item.num_tensors for item in account}
    assert 44_362 + sum(counts.values()) == len(real.census) > 124_000
    assert counts["input scales, which no op reads"] == 19 * 256 * 3
    assert counts["vision tower"] == 27
    assert counts["head for further tokens"] == 2
    own = real.layout.tensor_keys(real.config, BLOCK_A)
    # Without the shared experts' and the mixers' input scales.
    assert len(own) == 44_362 - 57 - 15 * 3 - 4 * 4


@pytest.mark.slow
def test_bytes_of_the_other_forms(real: Real) -> None:
    def num_bytes(state: str, form: str) -> int:
        request = real.request(representations={})
        return sum(
            spec.num_bytes for spec in real.layout.tensors(request, state, form, real.census)
        )

    rows = 19 * 256 * (2 * 512 + 2048)
    # One float32 more than one float16 a row.
    assert num_bytes(ROUTED, "expert-banks-bfloat16") == 8_636_596_224 + 2 * rows
    assert num_bytes(ROUTED, "checkpoint-native") == 8_606_770_176
    assert num_bytes(ROUTED, "bf16-dequantized") == 19 * 256 * 3 * 512 * 2048 * 2

"""The 12B model's three stages, derived from headers alone: holes where the weights would be."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.adapters.gemma.layout import SHARED_TABLE, GemmaLayout
from harness.checkpoint.census import census
from harness.cli import main
from harness.plan.checks import default_checks
from harness.plan.derive import DeriveRequest, derive
from harness.plan.freeze import freeze
from harness.plan.layout import LayoutRequest
from harness.plan.manifest import parse_manifest
from harness.plan.recipe import fixture_outputs
from harness.plan.records import (
    CheckpointFile,
    ComputeUnit,
    Determinism,
    FixtureRecipe,
    MemoryAllowances,
    MemoryResource,
    ModelRange,
    Node,
    Resources,
    Scope,
    TimeoutsS,
    Workload,
)
from harness.plan.state_bytes import bytes_by_state

HIDDEN, INNER, VOCAB, LAYERS, HEADS = 3840, 15360, 262144, 48, 16
PREFIX = "model.language_model."
TABLE_BYTES = 2_013_265_920
SOURCE_BYTES = {(0, 16): 9_256_814_624, (16, 32): 7_278_939_168, (32, 48): 7_278_946_848}
VALUE_COPIES = {(0, 16): 2, (16, 32): 3, (32, 48): 3}
CONFIG = {
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text",
        "attention_k_eq_v": True,
        "final_logit_softcapping": 30.0,
        "hidden_size": HIDDEN,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": INNER,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 8,
        "num_attention_heads": HEADS,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": 8,
        "sliding_window": 1024,
        "vocab_size": VOCAB,
    },
}


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of the text model, spelled out from the model's facts, and one of another."""
    yield f"{PREFIX}embed_tokens.weight", (VOCAB, HIDDEN)
    yield f"{PREFIX}norm.weight", (HIDDEN,)
    yield "model.vision_tower.patch_embedder.weight", (1152, 588)
    for layer in range(LAYERS):
        is_full = layer % 6 == 5
        head_dim, kv_heads = (512, 1) if is_full else (256, 8)
        block = f"{PREFIX}layers.{layer}."
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield f"{block}{norm}_layernorm.weight", (HIDDEN,)
        yield f"{block}layer_scalar", (1,)
        yield f"{block}mlp.gate_proj.weight", (INNER, HIDDEN)
        yield f"{block}mlp.up_proj.weight", (INNER, HIDDEN)
        yield f"{block}mlp.down_proj.weight", (HIDDEN, INNER)
        yield f"{block}self_attn.q_proj.weight", (HEADS * head_dim, HIDDEN)
        yield f"{block}self_attn.k_proj.weight", (kv_heads * head_dim, HIDDEN)
        if not is_full:
            yield f"{block}self_attn.v_proj.weight", (kv_heads * head_dim, HIDDEN)
        yield f"{block}self_attn.o_proj.weight", (HIDDEN, HEADS * head_dim)
        for norm in ("q_norm", "k_norm"):
            yield f"{block}self_attn.{norm}.weight", (head_dim,)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of 24 GB that take the disk space of their headers."""
    root = tmp_path_factory.mktemp("gemma4-12b")
    listed = list(shapes())
    half = len(listed) // 2
    for number, part in enumerate((listed[:half], listed[half:]), start=1):
        header, end = {}, 0
        for key, shape in part:
            begin, end = end, end + 2 * math.prod(shape)
            header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": (begin, end)}
        text = json.dumps(header).encode()
        with (root / f"model-0000{number}-of-00002.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            os.truncate(file.fileno(), 8 + len(text) + end)
    return root


def derive_request(folder: Path, start: int, end: int) -> DeriveRequest:
    layout = GemmaLayout()
    spec = ModelRange(
        start_layer=start,
        end_layer=end,
        owns_embeddings=start == 0,
        owns_final_norm_head=end == LAYERS,
        model_repository="google/gemma-4-12B-it",
        revision="0" * 40,
    )
    entries = census(folder)
    allowances = MemoryAllowances(unplanned_host_bytes=1 << 20)
    memories = (
        MemoryResource(id="node0.ram", kind="system-ram", capacity_bytes=16 << 30),
        MemoryResource(id="accelerator0.vram", kind="simulated-vram", capacity_bytes=16 << 30),
    )
    unit = ComputeUnit(
        id="accelerator0",
        kind="simulated-accelerator",
        device_uuid=None,
        memory_resources=("node0.ram", "accelerator0.vram"),
    )
    return DeriveRequest(
        plan_version="stage-1",
        model_repository=spec.model_repository,
        model_revision=spec.revision,
        checkpoint_source={
            "kind": "hub",
            "repository": "google/gemma-4-12B-it",
            "revision": spec.revision,
        },
        checkpoint_files=tuple(
            CheckpointFile(
                name=name,
                size_bytes=(folder / name).stat().st_size,
                sha256="sha256:" + "0" * 64,
            )
            for name in sorted({entry.file for entry in entries})
        ),
        census=entries,
        layout=layout,
        layout_request=LayoutRequest(
            config=layout.parse_config(CONFIG),
            spec=spec,
            determinism=Determinism(
                dtype="bfloat16",
                num_threads=2,
                deterministic_algorithms=True,
                batch_invariant=False,
                kernel_set="torch-cpu/1",
            ),
            workload=Workload(
                prompt_token_ids=(2, 5, 7),
                chunk_rows=64,
                decode_steps=1,
                repetitions=1,
                fresh_realizations=1,
                sampling="greedy",
                max_positions=1100,
                page_size=16,
                decode_token_ids=(3,),
            ),
            staging="whole",
        ),
        resources=Resources(
            swarm_id="local",
            nodes=(Node(id="node0", compute_units=(unit,), memory_resources=memories),),
        ),
        compute_unit_id="accelerator0",
        device_memory_id="accelerator0.vram",
        host_memory_id="node0.ram",
        reference_fixture=FixtureRecipe(
            loader="unselective-safetensors",
            outputs=fixture_outputs(spec),
            dtype="bfloat16",
            num_threads=2,
        ),
        checks=default_checks(allowances, layout.acceptance_checks),
        timeouts=TimeoutsS(fixture_s=600, realization_s=900, audit_s=300),
        memory_allowances=allowances,
        scope=Scope(proves=("bytes",), does_not_prove=("bits",)),
    )


@pytest.mark.parametrize(("start", "end"), sorted(SOURCE_BYTES))
def test_a_stage_has_the_known_bytes(folder: Path, start: int, end: int) -> None:
    document, manifest = derive(derive_request(folder, start, end))
    entries = parse_manifest(manifest, where="derived")
    states = {state.logical_state_id: state for state in bytes_by_state(entries)}
    weights, table = states["state.weights"], states.get(SHARED_TABLE)
    # The first stage's own table counts as its source; the last one's is the same table again.
    own = weights.source_bytes + (table.source_bytes if table is not None and start == 0 else 0)
    assert own == SOURCE_BYTES[start, end]
    assert (0 if table is None else table.source_bytes) == (0 if start == 16 else TABLE_BYTES)
    copies = VALUE_COPIES[start, end] * 512 * HIDDEN * 2
    assert weights.resident_bytes == weights.source_bytes + copies
    planned = {item["id"]: item["expected_bytes"] for item in document["materializations"]}
    assert planned["mat.weights.resident"] == weights.resident_bytes
    assert planned["mat.weights.stage"] == weights.source_bytes
    assert planned.get("mat.shared-table.resident", 0) == (0 if start == 16 else TABLE_BYTES)
    assert "state.ownership" in {check["id"] for check in document["checks"]["acceptance"]}


def test_the_stages_are_the_text_model_and_nothing_else(folder: Path) -> None:
    assert sum(SOURCE_BYTES.values()) == 23_814_700_640
    keys: set[str] = set()
    for start, end in SOURCE_BYTES:
        _, manifest = derive(derive_request(folder, start, end))
        keys |= {entry.key for entry in parse_manifest(manifest, where="derived")}
    assert keys == {key for key, _ in shapes() if key.startswith(PREFIX)}


def test_the_figures_are_shown_as_calculated(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, manifest = derive(derive_request(folder, 32, 48))
    frozen = freeze(document, tmp_path / "stage.json", manifest=manifest)
    assert main(["plan", "show", str(frozen.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "  state.shared-table: 1 tensors, 2,013,265,920 bytes stored, 2,013,265,920 resident "
        "(calculated)"
    ) in lines
    assert (
        "  state.weights: 222 tensors, 7,278,946,848 bytes stored, 7,290,743,328 resident "
        "(calculated)"
    ) in lines

"""From a repository on a hub to a plan, without its weights, and on to a run with them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save

from harness.adapters.families import layout_for
from harness.checkpoint.sources import fetch
from harness.errors import ExitCode
from harness.evidence.store import Store
from harness.measure.environment import DeviceRequest
from harness.plan.format import NATIVE_SCHEMA
from harness.plan.freeze import freeze
from harness.plan.load import LoadedPlan
from harness.plan.manifest import load_manifest
from harness.run.derivation import Settings, derive_settings
from harness.run.request import RunRequest
from harness.run.supervisor import check, run

MIB = 1 << 20
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
}
SHARDS = ("common", "layers.0.", "layers.1.")
DEVICE = {
    "kind": "simulated",
    "simulated_vram_bytes": 64 * MIB,
    "system_ram_limit_bytes": 512 * MIB,
}


@pytest.fixture
def sharded(hub: Any, tmp_path: Path) -> Any:
    """A small random model in three shards: what lies around the layers, and each layer."""
    whole = fetch(
        {
            "kind": "synthetic",
            "generator": "shake256/1",
            "seed": 7,
            "family": "llama",
            "dtype": "float32",
            "config": CONFIG,
        },
        tmp_path / "made",
        tensors=layout_for("llama").synthetic_tensors,
    )
    tensors = load_file(whole / "model.safetensors")
    hub.files = {
        name: (whole / name).read_bytes() for name in ("config.json", "tokenizer.json")
    } | {"README.md": b"#"}
    weight_map = {}
    for number, part in enumerate(SHARDS):
        name = f"model-{number}.safetensors"
        keys = [key for key in tensors if _shard_of(key) == part]
        hub.files[name] = save({key: tensors[key] for key in keys})
        weight_map.update(dict.fromkeys(keys, name))
    hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    return hub


def _shard_of(key: str) -> str:
    return next((part for part in SHARDS[1:] if part in key), SHARDS[0])


def settings(source: Mapping[str, Any]) -> Settings:
    return Settings(
        name="small",
        model={
            "family": "llama",
            "repository": source["repository"],
            "revision": source["revision"],
            "source": {**source, "digest_source": "declared"},
            "range": {"end_layer": 1},
        },
        device=DEVICE,
        workload={
            "prompt_text": None,
            "chat": False,
            "prompt_token_ids": [3, 77, 12, 150, 9],
            "chunk_rows": 4,
            "decode_steps": 3,
            # What follows, as a range without the head cannot choose it.
            "decode_token_ids": [5, 6, 7],
            "repetitions": 2,
            "fresh_realizations": 1,
            "sampling": "greedy",
            "max_positions": 16,
        },
        realization={
            "staging": "whole",
            "staging_window_bytes": None,
            "unplanned_host_bytes": MIB // 2,
        },
        determinism={
            "dtype": "float32",
            "num_threads": 1,
            "deterministic_algorithms": True,
            "batch_invariant": False,
            "kernel_set": "torch-cpu/1",
        },
        timeouts={"fixture_s": 120, "realization_s": 120, "audit_s": 60},
        checks=None,
    )


def frozen(source: Mapping[str, Any], tmp_path: Path) -> LoadedPlan:
    document, manifest = derive_settings(
        settings(source), cache=tmp_path / "cache", progress=lambda text, fraction=None: None
    )
    return freeze(document, tmp_path / "plan.json", manifest=manifest)


def request(tmp_path: Path) -> RunRequest:
    return RunRequest(
        experiment="small",
        plan_path=tmp_path / "plan.json",
        plan_digest=None,
        device=DeviceRequest(**DEVICE),
        store=tmp_path / "store",
        cache=tmp_path / "cache",
    )


def test_a_plan_is_derived_without_weights(
    tmp_path: Path, sharded: Any, source: Mapping[str, Any]
) -> None:
    loaded = frozen(source, tmp_path)
    plan = loaded.plan
    assert plan.schema == NATIVE_SCHEMA
    assert plan.checkpoint is not None
    assert dict(plan.checkpoint.source) == {**source, "digest_source": "declared"}
    assert [file.name for file in plan.checkpoint.files] == [
        "config.json",
        "model-0.safetensors",
        "model-1.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    rows = load_manifest(tmp_path, plan.checkpoint.manifest)
    assert {row.digest_source for row in rows} == {"none"}
    assert {row.sha256 for row in rows} == {None}
    assert {row.file for row in rows} == {"model-0.safetensors", "model-1.safetensors"}
    for each in sharded.contents:
        if each.name.startswith("model-"):
            assert each.range == "bytes=0-65535"
    # What the static check reads needs no hub, and finds the plan sound.
    num_requests = len(sharded.requests)
    check(request(tmp_path))
    assert len(sharded.requests) == num_requests
    again = tmp_path / "again"
    again.mkdir()
    assert frozen(source, again).document == loaded.document


@pytest.mark.slow
def test_a_run_fetches_what_its_plan_needs_and_cannot_claim_integrity(
    tmp_path: Path, sharded: Any, source: Mapping[str, Any]
) -> None:
    frozen(source, tmp_path)
    sharded.requests.clear()
    assert run(request(tmp_path)) == ExitCode.NOT_EVALUABLE
    fetched = [each.name for each in sharded.contents if each.name.startswith("model-")]
    assert fetched == ["model-0.safetensors", "model-1.safetensors"]
    store = Store(tmp_path / "store")
    (digest,) = store.digests("verdicts")
    checks = store.read_verdict(digest)["predicate"]["checks"]
    unproven = {each["id"]: each["status"] for each in checks if each["status"] != "passed"}
    assert unproven == {"integrity.source": "not_evaluated"}
    assert b"NotToBeSeen" not in b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )

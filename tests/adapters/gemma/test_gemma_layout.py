"""Keys, bytes and boundaries of ranges, without a forward pass."""

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.adapters.gemma.layout import KV, ROPE, ROPE_TABLE, SHARED_TABLE, GemmaLayout
from harness.errors import PlanError
from harness.plan.layout import DTYPE_BYTES
from harness.plan.records import ModelRange

WEIGHTS = "state.weights"


def total(specs: Any) -> int:
    return sum(spec.num_bytes for spec in specs)


def ranges(bench: Any) -> dict[str, ModelRange]:
    """The three roles over three layers: one layer each."""
    whole = bench.whole
    return {
        "first": replace(whole, end_layer=1, owns_final_norm_head=False),
        "middle": replace(
            whole, start_layer=1, end_layer=2, owns_embeddings=False, owns_final_norm_head=False
        ),
        "last": replace(whole, start_layer=2, owns_embeddings=False),
        "single": whole,
    }


@pytest.mark.parametrize("generation", [3, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_and_bytes_add_up(make_gemma: Callable[..., Any], generation: int, dtype: str) -> None:
    bench = make_gemma(generation)
    layout, request, census = bench.layout, bench.request(dtype=dtype), bench.census()
    keys = layout.tensor_keys(bench.config, bench.whole)
    assert list(keys) == sorted({entry.key for entry in census})
    by_key = layout.expected_bytes_by_key(request, census)
    assert list(by_key) == list(keys)
    merged = layout.tensors(request, WEIGHTS, f"gemma-merged-{dtype}", census)
    table = layout.tensors(request, SHARED_TABLE, f"gemma-shared-table-{dtype}", census)
    assert sum(by_key.values()) == total(merged) + total(table)
    elements = {entry.key: math.prod(entry.shape) for entry in census}
    shared = {f"model.layers.{n}.self_attn.k_proj.weight" for n in (1, 2) if generation == 4}
    assert by_key == {
        key: (1 + (key in shared)) * elements[key] * DTYPE_BYTES[dtype] for key in keys
    }
    for state in (WEIGHTS, SHARED_TABLE):
        design = next(d for d in layout.states(request) if d.id == state)
        native = layout.tensors(request, state, "checkpoint-native", census)
        assert tuple(spec.name for spec in native) == design.tensor_keys


def test_values_from_keys_fill_the_same_rows_twice(make_gemma: Callable[..., Any]) -> None:
    bench = make_gemma(4)
    tensors = {t.name: t for t in bench.layout.residents(bench.config, bench.whole)[WEIGHTS]}
    prefix = "model.layers.1.self_attn."
    assert [(s.key, s.row_offset, s.rows) for s in tensors["layers.1.qkv"].sources] == [
        (f"{prefix}q_proj.weight", 0, 48),
        (f"{prefix}k_proj.weight", 48, 12),
        (f"{prefix}k_proj.weight", 60, 12),
    ]
    assert [s.key.split(".")[-2] for s in tensors["layers.0.qkv"].sources] == [
        "q_proj",
        "k_proj",
        "v_proj",
    ]


def test_a_value_projection_where_values_come_from_keys_is_refused_by_name(
    make_gemma: Callable[..., Any],
) -> None:
    bench = make_gemma(4)
    layout, census = bench.layout, bench.census()
    assert layout.account(bench.config, bench.whole, census) == ()
    (own,) = (entry for entry in census if entry.key.endswith("0.self_attn.v_proj.weight"))
    keys = [f"model.layers.{n}.self_attn.v_proj.weight" for n in (1, 2)]
    wrong = (*census, *(replace(own, key=key) for key in reversed(keys)))
    with pytest.raises(PlanError) as caught:
        layout.account(bench.config, bench.whole, wrong)
    assert [finding.path for finding in caught.value.findings] == keys
    # A range without those layers leaves them out with the other tensors of other layers.
    (left_out,) = layout.account(bench.config, ranges(bench)["first"], wrong)
    assert left_out.num_tensors == 2 * 14 + 1


STRANGE = {
    "model.layers.0.self_attn.q_proj.bias": ("first", "single"),
    "model.layers.2.mlp.experts.gate_up_proj": ("last", "single"),
    "model.layers.3.input_layernorm.weight": ("first", "last", "single"),
    "model.embed_tokens_per_layer.weight": ("first", "last", "single"),
    "lm_head.weight": ("last", "single"),
    "model.language_model.lm_head.weight": ("last", "single"),
    "vision_tower.embeddings.weight": (),
}
"""Key -> roles that would read it, if the model of three layers and a shared table had it."""


@pytest.mark.parametrize("generation", [3, 4])
@pytest.mark.parametrize("role", ["first", "last", "single"])
def test_what_another_model_would_read_is_refused_by_name(
    make_gemma: Callable[..., Any], generation: int, role: str
) -> None:
    bench = make_gemma(generation)
    spec = bench.whole if role == "single" else ranges(bench)[role]
    census = bench.census()
    more = [replace(census[0], key=key) for key in STRANGE]
    with pytest.raises(PlanError) as caught:
        bench.layout.account(bench.config, spec, (*census, *more))
    refused = {finding.path for finding in caught.value.findings}
    wanted = {key for key, roles in STRANGE.items() if role in roles}
    assert refused == wanted
    bench.layout.account(bench.config, spec, (*census, more[-1]))


@pytest.mark.parametrize("generation", [3, 4])
def test_roles_split_the_model_and_share_the_table(
    make_gemma: Callable[..., Any], generation: int
) -> None:
    bench = make_gemma(generation)
    roles = ranges(bench)
    keys = {n: set(bench.layout.tensor_keys(bench.config, spec)) for n, spec in roles.items()}
    assert keys["first"] | keys["middle"] | keys["last"] == keys["single"]
    assert keys["first"] & keys["last"] == {"model.embed_tokens.weight"}
    assert not keys["middle"] & (keys["first"] | keys["last"])
    states = {
        name: [d.id for d in bench.layout.states(bench.request(spec=spec))]
        for name, spec in roles.items()
    }
    for name in ("first", "last", "single"):
        assert states[name][:4] == [SHARED_TABLE, WEIGHTS, ROPE, KV]
    assert states["middle"][:3] == [WEIGHTS, ROPE, KV]
    assert "model.norm.weight" in keys["last"]
    assert "model.norm.weight" not in keys["first"]


def test_boundaries_are_those_of_the_range_with_global_numbers(
    make_gemma: Callable[..., Any],
) -> None:
    bench = make_gemma(4)
    names = {
        role: bench.layout.boundaries(bench.config, spec) for role, spec in ranges(bench).items()
    }
    per_layer = 18
    assert [len(names[role]) for role in ("first", "middle", "last", "single")] == [
        4 + per_layer,
        3 + per_layer,
        3 + per_layer + 2,
        4 + 3 * per_layer + 2,
    ]
    shared = ("page_table", "layers.0.input_norm")
    assert names["first"][:5] == ("token_ids", "positions", "embedding", *shared)
    shared = ("page_table", "layers.2.input_norm")
    assert names["last"][:4] == ("positions", "input_plane", *shared)
    assert names["last"][-3:] == ("layers.2.layer_scalar", "final_norm", "logits")
    assert all(len(set(listed)) == len(listed) for listed in names.values())
    layer = [n.removeprefix("layers.2.") for n in names["last"] if n.startswith("layers.2.")]
    order = ("slots", "q", "k", "v", "kv_before", "kv_written", "attention_out", "residual_1")
    assert [name for name in layer if name in order] == list(order)


@pytest.mark.parametrize("role", ["first", "middle", "single"])
def test_tables_and_pool_are_those_of_the_kinds_in_the_range(
    make_gemma: Callable[..., Any], gemma_request: Callable[..., Any], role: str
) -> None:
    bench = make_gemma(4)
    request = gemma_request(
        bench, spec=ranges(bench)[role], page_size=4, max_positions=10, dtype="bfloat16"
    )
    kinds = {"first": ["swa"], "middle": ["full"], "single": ["full", "swa"]}[role]
    tables = bench.layout.tensors(request, ROPE, ROPE_TABLE, ())
    halves = {"full": 6, "swa": 4}
    assert [(t.name, t.dtype, t.shape) for t in tables] == [
        (f"{kind}.{name}", "float32", (10, halves[kind]))
        for kind in kinds
        for name in ("cos", "sin")
    ]
    pool = {t.name: t for t in bench.layout.tensors(request, KV, "kv-hybrid-paged-bfloat16", ())}
    assert {name.split(".")[0] for name in pool if name.endswith((".k", ".v"))} == set(kinds)
    # Three pages of four positions and the sentinel's.
    shapes = {"full": (2 if role == "single" else 1, 16, 1, 12), "swa": (1, 16, 2, 8)}
    for kind in kinds:
        assert pool[f"{kind}.k"].shape == pool[f"{kind}.v"].shape == shapes[kind]
        assert pool[f"{kind}.k"].dtype == "bfloat16"
    snapshot = bench.layout.tensors(request, "state.replay-baseline", "state-snapshot", ())
    assert tuple(snapshot) == tuple(pool.values())


def test_eviction_bounds_the_sliding_pool(
    make_gemma: Callable[..., Any], gemma_request: Callable[..., Any]
) -> None:
    bench = make_gemma(3)
    (policy,) = bench.layout.eviction_policies
    settings: dict[str, Any] = {"max_positions": 64, "chunk_rows": 5}
    sizes = {}
    for chosen in (None, policy):
        request = gemma_request(bench, eviction_policy=chosen, **settings)
        tensors = bench.layout.tensors(request, KV, "kv-hybrid-paged-float32", ())
        sizes[chosen] = {t.name: t.shape for t in tensors}
    assert sizes[None]["swa.k"][1] == sizes[None]["full.k"][1] == 65
    assert sizes[policy]["swa.k"][1] < 8 + 5 + 2
    assert sizes[policy]["full.k"] == sizes[None]["full.k"]
    with pytest.raises(PlanError, match="eviction_policy"):
        bench.layout.states(gemma_request(bench, eviction_policy="forget/1"))


def test_a_range_outside_the_model_is_refused(make_gemma: Callable[..., Any]) -> None:
    bench = make_gemma(3)
    with pytest.raises(PlanError, match="layer range"):
        bench.layout.tensor_keys(bench.config, replace(bench.whole, end_layer=4))


S, F = "sliding_attention", "full_attention"
GEMMA4_12B = {
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text",
        "attention_k_eq_v": True,
        "final_logit_softcapping": 30.0,
        "hidden_size": 3840,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 15360,
        "layer_types": ([S] * 5 + [F]) * 8,
        "num_attention_heads": 16,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "sliding_window": 1024,
        "vocab_size": 262144,
    },
}


def test_source_and_resident_bytes_of_the_12b_stages() -> None:
    layout = GemmaLayout()
    config = layout.parse_config(GEMMA4_12B)
    shapes = {key: t.shape for key, t in layout.synthetic_tensors(GEMMA4_12B).items()}
    assert sum(2 * math.prod(shape) for shape in shapes.values()) == 23_814_700_640
    stages = {
        (0, 16): (9_256_814_624, 2),
        (16, 32): (7_278_939_168, 3),
        (32, 48): (7_278_946_848 + 2_013_265_920, 3),
    }
    for (start, end), (source_bytes, num_shared_kv) in stages.items():
        spec = ModelRange(
            start_layer=start,
            end_layer=end,
            owns_embeddings=start == 0,
            owns_final_norm_head=end == 48,
            model_repository="",
            revision="",
        )
        keys = layout.tensor_keys(config, spec)
        assert sum(2 * math.prod(shapes[key]) for key in keys) == source_bytes
        residents = layout.residents(config, spec)
        table = total(t.spec("bfloat16") for t in residents[SHARED_TABLE])
        merged = total(t.spec("bfloat16") for t in residents[WEIGHTS])
        assert table == (2_013_265_920 if start == 0 or end == 48 else 0)
        assert merged == source_bytes - table + num_shared_kv * 512 * 3840 * 2
    layer = [2 * math.prod(s) for key, s in shapes.items() if ".layers.0." in key]
    assert sum(layer) == 448_297_986
    layer = [2 * math.prod(s) for key, s in shapes.items() if ".layers.5." in key]
    assert sum(layer) == 483_688_450


def test_the_layout_imports_no_torch() -> None:
    code = "import sys, harness.adapters.gemma.layout; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

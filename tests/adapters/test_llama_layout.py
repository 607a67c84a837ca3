import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.errors import PlanError
from harness.plan.layout import DTYPE_BYTES


def total(specs: Any) -> int:
    return sum(math.prod(spec.shape) * DTYPE_BYTES[spec.dtype] for spec in specs)


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": False}, {"attention_bias": True, "mlp_bias": True}],
    ids=["tied", "untied", "biases"],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_and_bytes_add_up(
    make_bench: Callable[..., Any], changes: dict[str, Any], dtype: str
) -> None:
    bench = make_bench(**changes)
    request, census = bench.request(dtype=dtype), bench.census()
    keys = bench.layout.tensor_keys(bench.config, bench.whole)
    assert list(keys) == sorted({entry.key for entry in census})
    by_key = bench.layout.expected_bytes_by_key(request, census)
    assert list(by_key) == list(keys)
    merged = bench.tensors(request, f"llama-merged-{dtype}", census)
    elements = sum(math.prod(entry.shape) for entry in census)
    assert sum(by_key.values()) == total(merged) == elements * DTYPE_BYTES[dtype]
    native = bench.tensors(request, "checkpoint-native", census)
    assert [(s.name, s.dtype, s.shape) for s in native] == [
        (e.key, e.dtype, e.shape) for e in sorted(census, key=lambda entry: entry.key)
    ]


def test_sources_fill_every_row_once(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(attention_bias=True)
    sources = bench.layout.resident_sources(bench.config, bench.whole)
    specs = bench.tensors(bench.request(), "llama-merged-float32", bench.census())
    assert list(sources) == [spec.name for spec in specs]
    for spec in specs:
        rows = [
            row
            for part in sources[spec.name]
            for row in range(part.row_offset, part.row_offset + part.rows)
        ]
        assert rows == list(range(spec.shape[0]))
    assert [(s.key, s.row_offset, s.rows) for s in sources["layers.1.qkv"]] == [
        ("model.layers.1.self_attn.q_proj.weight", 0, 24),
        ("model.layers.1.self_attn.k_proj.weight", 24, 12),
        ("model.layers.1.self_attn.v_proj.weight", 36, 12),
    ]


@pytest.mark.parametrize("tied", [True, False])
def test_ranges_split_the_model(make_bench: Callable[..., Any], tied: bool) -> None:
    bench = make_bench(tie_word_embeddings=tied)
    first = replace(bench.whole, end_layer=1, owns_final_norm_head=False)
    last = replace(bench.whole, start_layer=1, owns_embeddings=False)
    keys = [set(bench.layout.tensor_keys(bench.config, spec)) for spec in (first, last)]
    assert keys[0] | keys[1] == set(bench.layout.tensor_keys(bench.config, bench.whole))
    shared = {"model.embed_tokens.weight"} if tied else set()
    assert keys[0] & keys[1] == shared
    names = bench.layout.boundaries(bench.config, last)
    assert names[:2] == ("positions", "input_plane")
    assert names[2] == "layers.1.input_norm"
    assert names[-2:] == ("final_norm", "logits")


def test_mutable_and_test_state_shapes(make_bench: Callable[..., Any]) -> None:
    bench = make_bench()
    request = bench.request(dtype="bfloat16", prompt=(1, 2, 3), decode_steps=5, max_positions=9)

    def shapes(form: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        specs = bench.tensors(request, form, bench.census())
        return {spec.name: (spec.dtype, spec.shape) for spec in specs}

    cache = {"k": ("bfloat16", (2, 9, 2, 6)), "v": ("bfloat16", (2, 9, 2, 6))}
    assert shapes("kv-contiguous-bfloat16") == shapes("state-snapshot") == cache
    table = ("float32", (9, 3))
    assert shapes("rope-table-float32") == {"cos": table, "sin": table}
    assert shapes("reference-outputs") == {
        "prefill.plane": ("bfloat16", (3, 24)),
        "prefill.logits": ("float32", (53,)),
        "decode.plane": ("bfloat16", (5, 24)),
        "decode.logits": ("float32", (5, 53)),
    }


def test_states_by_staging(make_bench: Callable[..., Any]) -> None:
    bench = make_bench()
    forms = {}
    for staging in ("whole", "streaming", "none"):
        states = bench.layout.states(bench.request(staging=staging))
        forms[staging] = states[0].staging_representation
        assert [state.id for state in states] == [
            "state.weights",
            "state.rope",
            "state.kv",
            "state.replay-baseline",
            "state.reference-fixture",
        ]
        for state in states:
            assert bench.layout.supports_representation(state.id, state.representation)
    assert forms == {
        "whole": "checkpoint-native",
        "streaming": "checkpoint-window",
        "none": None,
    }
    assert not bench.layout.supports_representation("state.kv", "llama-merged-float32")
    assert not bench.layout.supports_representation("state.other", "state-snapshot")


def test_the_window_holds_the_largest_tensor(make_bench: Callable[..., Any]) -> None:
    bench = make_bench()
    largest = 53 * 24 * 4
    fits = bench.request(staging="streaming", window_bytes=largest)
    (window,) = bench.tensors(fits, "checkpoint-window", bench.census())
    assert (window.name, window.dtype, window.shape) == ("window", "uint8", (largest,))
    for size in (largest - 1, None):
        small = bench.request(staging="streaming", window_bytes=size)
        with pytest.raises(PlanError, match=r"model\.embed_tokens\.weight"):
            bench.tensors(small, "checkpoint-window", bench.census())


def test_a_checkpoint_of_another_model_is_refused_with_every_key(
    make_bench: Callable[..., Any],
) -> None:
    bench = make_bench()
    census = list(bench.census())
    by_key = {entry.key: index for index, entry in enumerate(census)}
    wrong_shape, wrong_dtype = "model.norm.weight", "model.layers.0.mlp.up_proj.weight"
    census[by_key[wrong_shape]] = replace(census[by_key[wrong_shape]], shape=(25,))
    census[by_key[wrong_dtype]] = replace(census[by_key[wrong_dtype]], dtype="int8")
    absent = census.pop(by_key["model.embed_tokens.weight"]).key
    with pytest.raises(PlanError) as error:
        bench.tensors(bench.request(), "checkpoint-native", census)
    assert {finding.path for finding in error.value.findings} == {
        wrong_shape,
        wrong_dtype,
        absent,
    }


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"dtype": "float16"}, "$.determinism.dtype"),
        ({"staging": "some"}, "staging"),
        ({"prompt": (1, 53)}, "$.workload.prompt_token_ids"),
        ({"decode_token_ids": (1, 53, 0, 0)}, "$.workload.decode_token_ids"),
        ({"page_size": 4}, "$.workload.page_size"),
        ({"eviction_policy": "evict-all/1"}, "$.eviction_policy"),
        ({"prompt": tuple(range(50)), "decode_steps": 15}, "$.workload.max_positions"),
    ],
)
def test_requests_that_cannot_be_realized(
    make_bench: Callable[..., Any], changes: dict[str, Any], where: str
) -> None:
    bench = make_bench()
    with pytest.raises(PlanError) as error:
        bench.layout.states(bench.request(**changes))
    assert [finding.path for finding in error.value.findings] == [where]


def test_a_long_prompt_under_dynamic_scaling_is_refused(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(
        max_position_embeddings=8, rope_scaling={"rope_type": "dynamic", "factor": 2.0}
    )
    bench.layout.states(bench.request(prompt=tuple(range(8))))
    with pytest.raises(PlanError, match="dynamic rotary scaling"):
        bench.layout.states(bench.request(prompt=tuple(range(9))))


def test_layouts_import_no_torch() -> None:
    code = (
        "import sys; from harness.adapters.families import layout_for; layout_for('llama'); "
        "sys.exit(any(m.split('.')[0] in ('torch', 'kernels', 'numpy') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def with_keys(census: Any, *keys: str) -> list[Any]:
    """A census with further tensors, shaped like its first one."""
    return [*census, *(replace(census[0], key=key) for key in keys)]


def test_what_would_change_the_model_is_refused_by_name(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(tie_word_embeddings=True)
    strange = (
        "lm_head.weight",
        "model.layers.1.self_attn.q_proj.bias",
        "model.layers.2.input_layernorm.weight",
        "model.per_layer_table.weight",
    )
    with pytest.raises(PlanError) as error:
        bench.layout.account(bench.config, bench.whole, with_keys(bench.census(), *strange))
    assert [finding.path for finding in error.value.findings] == list(strange)


def test_what_is_of_no_influence_is_left_out(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(tie_word_embeddings=True)
    others = ("model.layers.0.self_attn.rotary_emb.inv_freq", "vision_tower.patch.weight")
    (left,) = bench.layout.account(bench.config, bench.whole, with_keys(bench.census(), *others))
    assert left.num_tensors == 2
    first = replace(bench.whole, end_layer=1, owns_final_norm_head=False)
    headed = with_keys(bench.census(), "lm_head.weight")
    (left,) = bench.layout.account(bench.config, first, headed)
    assert left.num_tensors > 1


def test_an_end_is_owned_with_the_layer_beside_it(make_bench: Callable[..., Any]) -> None:
    bench = make_bench()
    for changes, end in (
        ({"start_layer": 1}, "owns_embeddings"),
        ({"end_layer": 1}, "owns_final_norm_head"),
    ):
        with pytest.raises(PlanError, match=f"got: {end}"):
            bench.layout.tensor_keys(bench.config, replace(bench.whole, **changes))

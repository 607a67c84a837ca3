"""Published documents into the normalized configuration, and what is refused by name."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.adapters.gemma.config import AttentionKind, read_config
from harness.adapters.gemma.published import parse_document
from harness.errors import PlanError

S, F = "sliding_attention", "full_attention"

GEMMA3_270M = {
    "_sliding_window_pattern": 6,
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 640,
    "initializer_range": 0.02,
    "intermediate_size": 2048,
    "layer_types": ([S] * 5 + [F]) * 3,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.55.0",
    "use_bidirectional_attention": False,
    "use_cache": True,
    "vocab_size": 262144,
}
GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0",
    "vision_config": {"hidden_size": 1152},
}


def gemma4_12b(model_type: str = "gemma4_unified") -> dict[str, Any]:
    per_layer = {"head_dim": 512, "num_key_value_heads": 1}
    return {
        "model_type": model_type,
        "tie_word_embeddings": True,
        "vision_config": {},
        "audio_config": None,
        "boa_token_id": 256000,
        "text_config": {
            "model_type": f"{model_type}_text",
            "attention_k_eq_v": True,
            "final_logit_softcapping": 30.0,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 3840,
            "hidden_size_per_layer_input": 0,
            "intermediate_size": 15360,
            "layer_types": ([S] * 5 + [F]) * 8,
            "num_attention_heads": 16,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "num_kv_shared_layers": 0,
            "per_layer_config": {str(layer): per_layer for layer in range(5, 48, 6)},
            "rope_parameters": {
                F: {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
                S: {"rope_theta": 1e4, "rope_type": "default"},
            },
            "sliding_window": 1024,
            "use_bidirectional_attention": "vision",
            "use_double_wide_mlp": False,
            "vocab_size": 262144,
        },
    }


def test_gemma_3_270m() -> None:
    config = parse_document(GEMMA3_270M)
    assert config.key_prefix == "model."
    assert config.layer_kinds == (("swa",) * 5 + ("full",)) * 3
    assert config.window == 512
    assert config.attention_scale == 0.0625
    assert config.norm_unit_offset
    assert not config.value_norm
    assert not config.layer_scalar
    assert config.logit_softcap is None
    shared: dict[str, Any] = {
        "num_kv_heads": 1,
        "head_dim": 256,
        "values_from_keys": False,
        "rope_factor": 1.0,
        "rope_pairs": 128,
    }
    assert config.full == AttentionKind(**shared, rope_theta=1e6)
    assert config.swa == AttentionKind(**shared, rope_theta=1e4)


def test_gemma_3_4b_says_little_and_means_the_published_defaults() -> None:
    config = parse_document(GEMMA3_4B)
    assert config.key_prefix == "language_model.model."
    assert (config.num_heads, config.vocab_size, config.window) == (8, 262_208, 1024)
    assert config.layer_kinds.count("full") == 5
    assert config.layer_kinds[5::6] == ("full",) * 5
    assert config.full is not None
    assert config.swa is not None
    assert (config.full.rope_theta, config.full.rope_factor) == (1e6, 8.0)
    assert (config.swa.rope_theta, config.swa.rope_factor) == (1e4, 1.0)
    assert (config.full.num_kv_heads, config.full.head_dim) == (4, 256)


@pytest.mark.parametrize("model_type", ["gemma4", "gemma4_unified"])
def test_gemma_4_12b(model_type: str) -> None:
    config = parse_document(gemma4_12b(model_type))
    assert config.key_prefix == "model.language_model."
    assert config.layer_kinds == (("swa",) * 5 + ("full",)) * 8
    assert (config.window, config.attention_scale, config.logit_softcap) == (1024, 1.0, 30.0)
    assert not config.norm_unit_offset
    assert config.value_norm
    assert config.layer_scalar
    assert config.swa == AttentionKind(
        num_kv_heads=8,
        head_dim=256,
        values_from_keys=False,
        rope_theta=1e4,
        rope_factor=1.0,
        rope_pairs=128,
    )
    assert config.full == AttentionKind(
        num_kv_heads=1,
        head_dim=512,
        values_from_keys=True,
        rope_theta=1e6,
        rope_factor=1.0,
        rope_pairs=64,
    )


def test_sizes_of_full_layers_without_a_per_layer_table() -> None:
    document = gemma4_12b()
    text = document["text_config"]
    del text["per_layer_config"], text["rope_parameters"], text["layer_types"]
    text |= {"global_head_dim": 512, "num_global_key_value_heads": 1}
    assert parse_document(document) == parse_document(gemma4_12b())
    # Without shared projections the number of heads for full layers is not used.
    text |= {"attention_k_eq_v": False, "global_head_dim": 128}
    full = parse_document(document).full
    assert full is not None
    assert (full.num_kv_heads, full.head_dim, full.values_from_keys) == (8, 128, False)


def test_an_unfinished_pattern_ends_in_a_full_layer_in_generation_4_only(
    gemma_document: Callable[..., dict[str, Any]],
) -> None:
    changes = {"layer_types": None, "num_hidden_layers": 8}
    four = parse_document(gemma_document(4, **changes))
    assert four.layer_kinds == ("swa",) * 5 + ("full", "swa", "full")
    three = parse_document(gemma_document(3, **changes, sliding_window_pattern=3))
    assert three.layer_kinds == ("swa", "swa", "full") * 2 + ("swa", "swa")


@pytest.mark.parametrize("kinds", [[S, S, S], [F, F, F]])
def test_one_kind_only(gemma_document: Callable[..., dict[str, Any]], kinds: list[str]) -> None:
    config = parse_document(gemma_document(3, layer_types=kinds))
    assert (config.full is None) == (kinds[0] == S)
    assert (config.swa is None) == (config.window is None) == (kinds[0] == F)
    assert read_config(config.document()) == config


@pytest.mark.parametrize("document", [GEMMA3_270M, GEMMA3_4B, gemma4_12b()])
def test_the_normalized_form_reads_back_through_json(document: dict[str, Any]) -> None:
    config = parse_document(document)
    assert read_config(json.loads(json.dumps(config.document()))) == config


OFF = {
    3: {"attn_logit_softcapping": None, "use_bidirectional_attention": None},
    4: {
        "enable_moe_block": False,
        "hidden_size_per_layer_input": None,
        "num_experts": None,
        "num_kv_shared_layers": None,
        "quantization_config": None,
        "use_bidirectional_attention": "vision",
        "use_double_wide_mlp": None,
        "vocab_size_per_layer_input": 262144,
    },
}


@pytest.mark.parametrize("generation", [3, 4])
def test_a_field_that_is_off_is_taken(
    gemma_document: Callable[..., dict[str, Any]], generation: int
) -> None:
    plain = parse_document(gemma_document(generation))
    assert parse_document(gemma_document(generation, **OFF[generation])) == plain


BOTH_REFUSE: dict[str, Any] = {
    "attention_bias": True,
    "hidden_activation": "silu",
    "hidden_act": "silu",
    "is_encoder_decoder": True,
    "num_hidden_layers": 0,
    "partial_rotary_factor": 0.5,
    "quantization_config": {"quant_method": "fp8"},
    "some_new_field": 1,
    "tie_word_embeddings": False,
    "num_key_value_heads": 3,
    "head_dim": 7,
    "hidden_size": None,
    "intermediate_size": "40",
    "rms_norm_eps": float("nan"),
    "sliding_window": None,
    "layer_types": [S, F],
    "architectures": ["Gemma2ForCausalLM"],
    "final_logit_softcapping": -1.0,
}
REFUSED = [
    (generation, name, value) for generation in (3, 4) for name, value in BOTH_REFUSE.items()
]
REFUSED += [
    (3, "attn_logit_softcapping", 50.0),
    (3, "use_bidirectional_attention", True),
    (3, "query_pre_attn_scalar", 0),
    (3, "num_kv_shared_layers", 2),
    (3, "per_layer_config", {"0": {"head_dim": 4}}),
    (4, "enable_moe_block", True),
    (4, "hidden_size_per_layer_input", 256),
    (4, "num_kv_shared_layers", 1),
    (4, "use_bidirectional_attention", "all"),
    (4, "use_double_wide_mlp", True),
    (4, "rope_scaling", {"rope_type": "linear", "factor": 2.0}),
    (4, "layer_types", [F, F, S]),
    (4, "layer_types", [F, F, "chunked_attention"]),
    (4, "attention_k_eq_v", 1),
]


@pytest.mark.parametrize(("generation", "name", "value"), REFUSED)
def test_an_unsupported_field_is_refused_by_name(
    gemma_document: Callable[..., dict[str, Any]], generation: int, name: str, value: Any
) -> None:
    document = gemma_document(generation) | {name: value}
    with pytest.raises(PlanError) as caught:
        parse_document(document)
    assert f"$.{name}" in {finding.path for finding in caught.value.findings}


def test_absent_means_per_layer_embeddings_where_that_is_the_default(
    gemma_document: Callable[..., dict[str, Any]],
) -> None:
    document = gemma_document(4)
    del document["hidden_size_per_layer_input"]
    with pytest.raises(PlanError, match=r"hidden_size_per_layer_input.* per-layer embeddings"):
        parse_document(document)
    document["model_type"] = "gemma4_unified_text"
    parse_document(document)


ROPES: list[tuple[int, dict[str, Any], str]] = [
    (3, {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "$.rope_scaling.rope_type"),
    (3, {"rope_scaling": {"rope_type": "linear"}}, "$.rope_scaling.factor"),
    (3, {"rope_parameters": {"rope_type": "default"}}, "$.rope_parameters.rope_type"),
    (
        3,
        {"rope_parameters": {F: {"rope_type": "default", "partial_rotary_factor": 0.5}}},
        f"$.rope_parameters.{F}.partial_rotary_factor",
    ),
    # Alone it scales in some implementations, and beside a default rope_type in none.
    (3, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "$.rope_scaling.type"),
    (
        4,
        {"rope_parameters": {F: {"rope_theta": 1e4}, S: {"type": "linear", "rope_theta": 1e4}}},
        f"$.rope_parameters.{S}.type",
    ),
    (3, {"rope_parameters": {F: None}, "rope_scaling": {"rope_type": "default"}}, "$.rope_scaling"),
    (4, {"rope_parameters": {F: {"rope_theta": 1e4}}}, f"$.rope_parameters.{S}.rope_theta"),
    (
        4,
        {
            "rope_parameters": {
                F: {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 1.5},
                S: {"rope_theta": 1e4},
            }
        },
        f"$.rope_parameters.{F}.partial_rotary_factor",
    ),
    (
        4,
        {
            "rope_parameters": {
                F: {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 1e299},
                S: {"rope_theta": 1e4},
            }
        },
        f"$.rope_parameters.{F}.partial_rotary_factor",
    ),
    (
        4,
        {
            "rope_parameters": {
                F: {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.1},
                S: {"rope_theta": 1e4},
            }
        },
        f"$.rope_parameters.{F}.partial_rotary_factor",
    ),
    (
        4,
        {
            "rope_parameters": {
                F: {"rope_type": "default", "rope_theta": 1e4, "factor": 2.0},
                S: {"rope_theta": 1e4},
            }
        },
        f"$.rope_parameters.{F}.factor",
    ),
]


@pytest.mark.parametrize(("generation", "changes", "path"), ROPES)
def test_unsupported_rotary_parameters_are_refused_by_name(
    gemma_document: Callable[..., dict[str, Any]],
    generation: int,
    changes: dict[str, Any],
    path: str,
) -> None:
    with pytest.raises(PlanError) as caught:
        parse_document(gemma_document(generation, **changes))
    assert {finding.path for finding in caught.value.findings} == {path}


PER_LAYER: list[tuple[dict[str, Any], str]] = [
    ({"1": {"head_dim": 16}}, "$.per_layer_config.2"),
    ({"1": {"intermediate_size": 80}}, "$.per_layer_config.1.intermediate_size"),
    ({"7": {"head_dim": 16}}, "$.per_layer_config.7"),
    ({"1": 3}, "$.per_layer_config.1"),
]


@pytest.mark.parametrize(("table", "path"), PER_LAYER)
def test_layers_of_one_kind_must_be_alike(
    gemma_document: Callable[..., dict[str, Any]], table: dict[str, Any], path: str
) -> None:
    with pytest.raises(PlanError) as caught:
        parse_document(gemma_document(4, per_layer_config=table))
    assert path in {finding.path for finding in caught.value.findings}


def test_faults_around_and_inside_are_listed_together() -> None:
    document = gemma4_12b()
    document |= {"quantization_config": {}, "new_tower": 1, "architectures": ["Gemma4ForCausalLM"]}
    document["text_config"]["enable_moe_block"] = True
    with pytest.raises(PlanError) as caught:
        parse_document(document)
    assert [finding.path for finding in caught.value.findings] == [
        "$.architectures",
        "$.new_tower",
        "$.quantization_config",
        "$.text_config.enable_moe_block",
    ]


def test_documents_of_no_use() -> None:
    with pytest.raises(PlanError, match="model_type"):
        parse_document({"model_type": "gemma2"})
    with pytest.raises(PlanError, match="model_type"):
        parse_document({})
    with pytest.raises(PlanError, match="text_config"):
        parse_document({"model_type": "gemma4"})


READ: list[tuple[str, Any]] = [
    ("key_prefix", "lm."),
    ("layer_kinds", ["full", "swa"]),
    ("layer_kinds", ["full", "swa", "linear"]),
    ("layer_kinds", None),
    ("window", None),
    ("window", 0),
    ("full", None),
    ("logit_softcap", 0),
    ("norm_unit_offset", 1),
    ("surplus", 1),
]


@pytest.mark.parametrize(("name", "value"), READ)
def test_a_damaged_normalized_form_is_refused_by_name(
    gemma_document: Callable[..., dict[str, Any]], name: str, value: Any
) -> None:
    document = parse_document(gemma_document(4)).document() | {name: value}
    with pytest.raises(PlanError) as caught:
        read_config(document)
    assert f"$.adapter_data.config.{name}" in {f.path for f in caught.value.findings}


def test_more_rotating_pairs_than_there_are_is_refused(
    gemma_document: Callable[..., dict[str, Any]],
) -> None:
    document = parse_document(gemma_document(4)).document()
    document["full"] |= {"rope_pairs": 7}
    with pytest.raises(PlanError, match="rope_pairs"):
        read_config(document)


ODD: list[Any] = [None, -1, 0, 1e299, float("inf"), "x", "", [], [[]], {}, {"0": {}}, True, 10**40]


@pytest.mark.parametrize("document", [GEMMA3_270M, gemma4_12b()["text_config"]])
def test_any_value_of_any_field_is_read_or_refused(document: dict[str, Any]) -> None:
    document = document | {"model_type": document["model_type"].replace("unified_", "")}
    for name in document:
        for value in ODD:
            # Anything but a refusal, such as an overflow, would be raised here.
            with contextlib.suppress(PlanError):
                config = parse_document(document | {name: value})
                assert read_config(json.loads(json.dumps(config.document()))) == config
    rope = {"rope_theta": 1e4, "rope_type": "proportional"}
    for name in (*rope, "factor", "partial_rotary_factor"):
        for value in ODD:
            changed = {F: rope | {name: value}, S: {"rope_theta": 1e4}}
            with contextlib.suppress(PlanError):
                parse_document(document | {"rope_parameters": changed, "rope_scaling": None})

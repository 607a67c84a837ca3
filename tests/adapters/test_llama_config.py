import json
import math
import re
from typing import Any

import pytest

from harness.adapters.llama.config import parse_document, read_config
from harness.errors import PlanError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def named(error: pytest.ExceptionInfo[PlanError]) -> list[str]:
    """Field paths that an error names, in its order."""
    return [finding.path for finding in error.value.findings]


def test_both_published_forms_of_rope_mean_the_same(small_document: dict[str, Any]) -> None:
    theta = small_document.pop("rope_theta")
    older = parse_document({**small_document, "rope_theta": theta, "rope_scaling": LLAMA3})
    newer = parse_document({**small_document, "rope_parameters": {**LLAMA3, "rope_theta": theta}})
    assert older == newer
    assert older.rope_scaling.original_max_positions == 32


@pytest.mark.parametrize(
    "rope",
    [
        {},
        {"rope_scaling": None},
        {"rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.5}},
        {"rope_scaling": LLAMA3},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": False}},
    ],
)
def test_the_normalized_form_reads_back(
    small_document: dict[str, Any], rope: dict[str, Any]
) -> None:
    config = parse_document(small_document | rope)
    document = json.loads(json.dumps(config.document()))
    assert read_config(document) == config


def test_absent_fields_take_the_published_defaults(small_document: dict[str, Any]) -> None:
    for name in [
        "num_key_value_heads",
        "rope_theta",
        "rms_norm_eps",
        "tie_word_embeddings",
        "max_position_embeddings",
    ]:
        del small_document[name]
    config = parse_document(small_document)
    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (4, 6, 10_000.0)
    assert (config.rms_norm_eps, config.tied, config.max_position_embeddings) == (1e-6, False, 2048)


def test_yarn_attention_factor(small_document: dict[str, Any]) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0}
    plain = parse_document(small_document | {"rope_scaling": yarn}).rope_scaling
    assert plain.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    given = parse_document(small_document | {"rope_scaling": {**yarn, "attention_factor": 0.5}})
    assert given.rope_scaling.attention_factor == 0.5
    assert plain.original_max_positions == 64


def test_every_unsupported_field_is_refused_by_name(small_document: dict[str, Any]) -> None:
    document = small_document | {
        "hidden_act": "gelu",
        "pretraining_tp": 2,
        "quantization_config": {"quant_method": "fp8"},
        "sliding_window": 128,
        "partial_rotary_factor": 0.5,
        "rope_interleaved": True,
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "num_key_value_heads": 3,
        "vocab_size": "53",
        "rms_norm_eps": float("nan"),
        "tie_word_embeddings": 1,
        "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]},
    }
    del document["intermediate_size"]
    with pytest.raises(PlanError) as error:
        parse_document(document)
    assert named(error) == [
        "$.architectures",
        "$.hidden_act",
        "$.intermediate_size",
        "$.model_type",
        "$.num_key_value_heads",
        "$.partial_rotary_factor",
        "$.pretraining_tp",
        "$.quantization_config",
        "$.rms_norm_eps",
        "$.rope_interleaved",
        "$.rope_scaling.rope_type",
        "$.rope_scaling.short_factor",
        "$.sliding_window",
        "$.tie_word_embeddings",
        "$.vocab_size",
    ]
    assert all(path in str(error.value) for path in named(error))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"head_dim": 7}, "$.head_dim"),
        ({"num_hidden_layers": 10**12}, "$.num_hidden_layers"),
        ({"hidden_size": 10**400}, "$.hidden_size"),
        ({"hidden_size": True}, "$.hidden_size"),
        ({"rms_norm_eps": 10**400}, "$.rms_norm_eps"),
        ({"rms_norm_eps": math.inf}, "$.rms_norm_eps"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "$.num_attention_heads"),
        ({"rope_scaling": [1]}, "$.rope_scaling"),
        ({"rope_scaling": {"rope_type": "linear"}}, "$.rope_scaling.factor"),
        ({"rope_scaling": {"factor": 2.0}}, "$.rope_scaling.factor"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "$.low_freq_factor"),
        ({"rope_scaling": LLAMA3, "rope_parameters": LLAMA3}, "$.rope_scaling"),
        ({"head_dim": 2, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "$.head_dim"),
        ({"attention_bias": "yes"}, "$.attention_bias"),
        ({"bogus": None}, "$.bogus"),
    ],
)
def test_refusals(small_document: dict[str, Any], change: dict[str, Any], path: str) -> None:
    with pytest.raises(PlanError) as error:
        parse_document(small_document | change)
    assert path in named(error)


def test_harmless_fields_are_ignored(small_document: dict[str, Any]) -> None:
    extra = {
        "use_cache": False,
        "torch_dtype": "bfloat16",
        "attention_dropout": 0.1,
        "transformers.js_config": {"dtype": "q4"},
        "pretraining_tp": 1,
        "quantization_config": None,
        "rope_interleaved": False,
        "architectures": ["LlamaForCausalLM"],
    }
    assert parse_document(small_document | extra) == parse_document(small_document)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"num_layers": None}, "$.adapter_data.config.num_layers"),
        ({"tied": 0}, "$.adapter_data.config.tied"),
        ({"more": 1}, "$.adapter_data.config.more"),
        ({"num_kv_heads": 3}, "$.adapter_data.config.num_kv_heads"),
        ({"rope": {"theta": 1e4}}, "$.adapter_data.config.rope.scaling"),
        (
            {"rope": {"theta": 1e4, "scaling": {"kind": "yarn"}}},
            "$.adapter_data.config.rope.scaling.beta_fast",
        ),
        (
            {"rope": {"theta": 1e4, "scaling": {"kind": "default", "factor": 2.0}}},
            "$.adapter_data.config.rope.scaling.factor",
        ),
    ],
)
def test_a_changed_normalized_form_is_refused(
    small_document: dict[str, Any], change: dict[str, Any], path: str
) -> None:
    document = parse_document(small_document).document() | change
    with pytest.raises(PlanError) as error:
        read_config(document)
    assert path in named(error)


def test_a_normalized_form_lacks_no_field_silently(small_document: dict[str, Any]) -> None:
    document = parse_document(small_document).document()
    for name in document:
        with pytest.raises(PlanError, match=re.escape(f"$.adapter_data.config.{name}")):
            read_config({key: value for key, value in document.items() if key != name})

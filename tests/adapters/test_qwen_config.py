"""Reading published configurations of the family, and refusing by name what is not supported."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import qwen_real
import qwen_small

from harness.adapters.qwen3_5_moe.config import FULL, LINEAR, read_config
from harness.adapters.qwen3_5_moe.published_config import parse_document
from harness.errors import PlanError

Document = dict[str, Any]


def refused(document: Document) -> dict[str, str]:
    with pytest.raises(PlanError) as error:
        parse_document(document)
    return {finding.path: finding.message for finding in error.value.findings}


def test_the_published_configuration() -> None:
    config = parse_document(qwen_real.document())
    assert config.key_prefix == "model.language_model."
    kinds = [layer.kind for layer in config.layers]
    assert kinds == ([LINEAR] * 3 + [FULL]) * 10
    assert {(x.mixer, x.experts, x.shared) for x in config.layers} == {("fp8", "nvfp4", "nvfp4")}
    assert (config.head, config.tied) == ("plain", False)
    assert (config.rotary_dim, config.rope_theta) == (64, 1e7)
    assert (config.conv_rows, config.q_rows, config.kv_rows) == (8192, 4096, 512)


@pytest.mark.parametrize("document", [qwen_real.document(), qwen_small.document()])
def test_the_normalized_form_is_read_back(document: Document) -> None:
    config = parse_document(document)
    written = json.loads(json.dumps(config.document()))
    assert written["num_layers"] == len(config.layers)
    assert read_config(written) == config


def test_a_text_model_by_itself_has_other_keys() -> None:
    config = parse_document(qwen_small.document())
    assert config.key_prefix == "model."
    assert [layer.kind for layer in config.layers] == [LINEAR, LINEAR, LINEAR, FULL]
    assert {layer.experts for layer in config.layers} == {"plain"}


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"model_type": "qwen3_moe"}, "$.model_type"),
        ({"attn_output_gate": False}, "$.attn_output_gate"),
        ({"attention_bias": True}, "$.attention_bias"),
        ({"mamba_ssm_dtype": "bfloat16"}, "$.mamba_ssm_dtype"),
        ({"mlp_only_layers": [1]}, "$.mlp_only_layers"),
        ({"norm_topk_prob": False}, "$.norm_topk_prob"),
        ({"output_gate_type": "sigmoid"}, "$.output_gate_type"),
        ({"hidden_act": "gelu"}, "$.hidden_act"),
        ({"use_sliding_window": True}, "$.use_sliding_window"),
        ({"sliding_window": 128}, "$.sliding_window"),
        ({"num_experts": 0}, "$.num_experts"),
        ({"num_experts": 1 << 40}, "$.num_experts"),
        ({"num_experts_per_tok": 5}, "$.top_k"),
        ({"num_key_value_heads": 3}, "$.num_kv_heads"),
        ({"linear_num_key_heads": 3}, "$.num_key_heads"),
        ({"linear_conv_kernel_dim": 1}, "$.conv_width"),
        ({"layer_types": ["linear_attention"]}, "$.layer_types"),
        ({"layer_types": ["linear_attention", {}, 3, "full_attention"]}, "$.layer_types"),
        ({"layer_types": "full_attention"}, "$.layer_types"),
        (
            {"layer_types": ["full_attention"] * 4, "full_attention_interval": 2},
            "$.full_attention_interval",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, "$.rope_parameters.rope_type"),
        ({"rope_parameters": {"rope_theta": "large"}}, "$.rope_parameters.rope_theta"),
        ({"rope_parameters": {"partial_rotary_factor": 0.2}}, "$.rotary_dim"),
        ({"rope_parameters": {"factor": 2.0}}, "$.rope_parameters.factor"),
        ({"rope_scaling": {}}, "$.rope_scaling"),
        ({"new_field": 1}, "$.new_field"),
    ],
)
def test_what_would_change_the_model_is_refused_by_name(changes: Document, where: str) -> None:
    assert where in refused(qwen_small.document(**changes))


def test_every_fault_is_listed_at_once() -> None:
    found = refused(qwen_small.document(hidden_size=-1, hidden_act="relu", vocab_size="many"))
    assert {"$.hidden_size", "$.hidden_act", "$.vocab_size"} <= found.keys()


def test_a_tied_head_is_one_thing_inside_and_around() -> None:
    document = qwen_real.document()
    document["text_config"]["tie_word_embeddings"] = True
    assert "$.text_config.tie_word_embeddings" in refused(document)


def described(**quantization: Any) -> Document:
    whole = {"quant_method": "modelopt", **quantization}
    return qwen_small.document(quantization_config=whole)


def parts(document: Document) -> list[tuple[str, str, str]]:
    return [(x.mixer, x.experts, x.shared) for x in parse_document(document).layers]


def test_formats_by_groups_of_modules() -> None:
    layers = [f"model.layers.{index}" for index in range(4)]
    packed = [f"{x}.mlp.experts*" for x in layers] + [f"{x}.mlp.shared_expert" for x in layers[1:]]
    groups = {
        "group_0": {"targets": ["lm_head"], "weights": {"num_bits": 8, "type": "float"}},
        "group_1": {
            "targets": packed,
            "weights": {"num_bits": 4, "type": "float", "group_size": 16},
        },
    }
    document = described(quant_algo="MIXED_PRECISION", config_groups=groups)
    assert parts(document) == [("plain", "nvfp4", "plain")] + [("plain", "nvfp4", "nvfp4")] * 3
    assert parse_document(document).head == "fp8"


def test_formats_by_what_is_left_plain() -> None:
    plain = ["lm_head", "*.linear_attn.*", "*.self_attn*", "*.gate", "*.shared_expert_gate"]
    document = described(quant_algo="NVFP4", ignore=plain)
    assert parts(document) == [("plain", "nvfp4", "nvfp4")] * 4
    everything = described(quant_algo="W4A16_NVFP4", exclude_modules=["*gate", "*_a", "*_b"])
    assert parts(everything) == [("nvfp4", "nvfp4", "nvfp4")] * 4
    assert parse_document(everything).head == "nvfp4"


def test_a_mixture_without_names_is_the_published_one() -> None:
    document = qwen_small.document(quantization_config=qwen_small.MIXTURE)
    assert parts(document) == [("fp8", "nvfp4", "nvfp4")] * 4


def listed(name: str, algorithm: Any) -> Callable[[], Document]:
    layers = {name: {"quant_algo": algorithm}}
    return lambda: described(quant_algo="MIXED_PRECISION", quantized_layers=layers)


@pytest.mark.parametrize(
    ("make", "where", "text"),
    [
        (
            lambda: qwen_small.document(quantization_config={"quant_method": "compressed-tensors"}),
            "$.quantization_config.quant_method",
            "divisors",
        ),
        (lambda: described(quant_algo="W4A16_AWQ"), "$.quantization_config.quant_algo", "AWQ"),
        (
            lambda: described(quant_algo="NVFP4", group_size=32, ignore=["model"]),
            "$.quantization_config.quant_algo",
            "32",
        ),
        (
            lambda: described(quant_algo="NVFP4", kv_scales=1),
            "$.quantization_config.kv_scales",
            "unknown",
        ),
        (
            lambda: described(quant_algo="NVFP4", ignore=7),
            "$.quantization_config.ignore",
            "not a list",
        ),
        (
            lambda: described(quant_algo="NVFP4", ignore=[f"{n}*" for n in range(2000)]),
            "$.quantization_config.quantized_layers",
            "2000 patterns",
        ),
        (lambda: qwen_small.document(quantization_config=7), "$.quantization_config", "object"),
        (
            listed("model.layers.1.mlp.experts.2.up_proj", "NVFP4"),
            "$.quantization_config",
            "nvfp4 and plain",
        ),
        (listed("model.layers.1.mlp.experts", "FP8"), "$.quantization_config", "experts in fp8"),
        (listed("model.layers.1.mlp.gate", "FP8"), "$.quantization_config", "mlp.gate"),
        (
            listed("model.layers.1.mlp.experts", "INT4"),
            "$.quantization_config.quantized_layers.model.layers.1.mlp.experts",
            "INT4",
        ),
        (
            lambda: qwen_small.document(
                moe_intermediate_size=24, quantization_config=qwen_small.MIXTURE
            ),
            "$.expert_size",
            "multiple of 16",
        ),
    ],
)
def test_quantizations_that_are_refused_by_name(
    make: Callable[[], Document], where: str, text: str
) -> None:
    assert text in refused(make())[where]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda d: d.update(num_layers=3), "num_layers"),
        (lambda d: d.update(layers=[]), "layers"),
        (lambda d: d["layers"][1].update(kind="sliding"), "layers[1].kind"),
        (lambda d: d["layers"][1].update(experts="fp8"), "layers[1].experts"),
        (lambda d: d["layers"][1].update(extra=1), "layers[1].extra"),
        (lambda d: d.pop("top_k"), "top_k"),
        (lambda d: d.update(more=1), "more"),
    ],
)
def test_a_damaged_plan_is_refused(change: Callable[[Document], object], where: str) -> None:
    document = parse_document(qwen_small.document()).document()
    change(document)
    with pytest.raises(PlanError) as error:
        read_config(document)
    assert f"$.adapter_data.config.{where}" in {f.path for f in error.value.findings}

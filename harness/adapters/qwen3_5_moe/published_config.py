"""A model's ``config.json`` read into the normalized configuration.

The only file of the family that knows the published field names of the architecture. Whatever
would change the model and is not supported is refused by name, all of it at once; fields without
influence on one step of the text model are ignored by an explicit list. Imports no torch.
"""

from collections.abc import Mapping
from typing import Any

from harness.adapters.common.fields import Fields
from harness.adapters.common.published import GENERAL_FIELDS, NO_OTHER_KIND_OF_MODEL
from harness.adapters.qwen3_5_moe.config import (
    FULL,
    LINEAR,
    MAX_EXPERTS,
    MAX_LAYERS,
    Layer,
    QwenConfig,
    check_shapes,
)
from harness.adapters.qwen3_5_moe.quantization import PLAIN, Quantization, layer_formats

_KINDS = {"linear_attention": LINEAR, "full_attention": FULL}
_OUTER_IGNORED = frozenset(
    (
        "_name_or_path",
        "architectures",
        "dtype",
        "image_token_id",
        "language_model_only",
        "torch_dtype",
        "transformers_version",
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_start_token_id",
    )
)
"""Fields around the text model's own: the vision tower is left out, a text prompt needs none."""
_IGNORED = GENERAL_FIELDS | {
    "architectures",
    "attention_dropout",
    "intermediate_size",
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "output_router_logits",
    "router_aux_loss_coef",
}
"""Fields that do not change what one step of the text model computes."""
_MUST_BE: Mapping[str, tuple[Any, ...]] = {
    **NO_OTHER_KIND_OF_MODEL,
    "attention_bias": (False,),
    "attn_output_gate": (True,),
    "decoder_sparse_step": (1,),
    "hidden_act": ("silu",),
    "mamba_ssm_dtype": ("float32",),
    "mlp_only_layers": ([], None),
    "norm_topk_prob": (True,),
    "output_gate_type": ("swish", "silu"),
    "use_sliding_window": (False,),
}
"""Fields that change the model, with the values that are supported; absent is supported too."""


def parse_document(document: Mapping[str, Any]) -> QwenConfig:
    """Read a model's ``config.json``: that of the text model, or the one it is nested in.

    Raises:
        PlanError: Listing every field that is missing, mistyped, unknown or not supported.
    """
    outer = Fields(document, rule="model-configuration")
    kind = outer.take("model_type")
    text, prefix, tied = outer, "model.", None
    quantization = outer.take("quantization_config", None)
    if kind == "qwen3_5_moe":
        text, prefix = outer.nested("text_config"), "model.language_model."
        tied = outer.flag("tie_word_embeddings", default=False)
        outer.refuse_rest(_OUTER_IGNORED)
        kind = text.take("model_type", "qwen3_5_moe_text")
        own = text.take("quantization_config", None)
        quantization = own if quantization is None else quantization
    if kind != "qwen3_5_moe_text":
        text.refuse("model_type", f"{kind!r} is not supported, only 'qwen3_5_moe_text'")
    described = None if quantization is None else outer.child("quantization_config", quantization)
    config = _parse_text(text, prefix, Quantization(described))
    if tied is not None and "tie_word_embeddings" in text.document and tied != config.tied:
        text.refuse("tie_word_embeddings", f"{config.tied}, and {tied} around it")
    text.refuse_rest(_IGNORED)
    text.raise_if_any("this configuration is not supported")
    return config


def _parse_text(fields: Fields, prefix: str, quantization: Quantization) -> QwenConfig:
    fields.require(_MUST_BE)
    num_experts = fields.size("num_experts", most=MAX_EXPERTS)
    kinds = _parse_kinds(fields)
    found = layer_formats(quantization, fields, prefix=prefix, kinds=kinds, num_experts=num_experts)
    head_dim = fields.size("head_dim", default=256)
    theta, rotary_dim = _parse_rope(fields, head_dim)
    config = QwenConfig(
        hidden_size=fields.size("hidden_size"),
        vocab_size=fields.size("vocab_size"),
        rms_norm_eps=fields.number("rms_norm_eps", default=1e-6),
        max_position_embeddings=fields.size("max_position_embeddings", default=32768),
        tied=fields.flag("tie_word_embeddings", default=False),
        num_heads=fields.size("num_attention_heads"),
        num_kv_heads=fields.size("num_key_value_heads"),
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=theta,
        num_key_heads=fields.size("linear_num_key_heads"),
        num_value_heads=fields.size("linear_num_value_heads"),
        key_head_dim=fields.size("linear_key_head_dim"),
        value_head_dim=fields.size("linear_value_head_dim"),
        conv_width=fields.size("linear_conv_kernel_dim", default=4, most=64),
        num_experts=num_experts,
        top_k=fields.size("num_experts_per_tok"),
        expert_size=fields.size("moe_intermediate_size"),
        shared_size=fields.size("shared_expert_intermediate_size"),
        head=quantization.format_of("lm_head", PLAIN),
        key_prefix=prefix,
        layers=tuple(
            Layer(kind=kind, **formats) for kind, formats in zip(kinds, found, strict=True)
        ),
    )
    check_shapes(fields, config)
    return config


def _parse_kinds(fields: Fields) -> list[str]:
    num_layers = fields.size("num_hidden_layers", most=MAX_LAYERS)
    given = fields.take("layer_types", None)
    interval = fields.size("full_attention_interval", default=4)
    expected = [LINEAR if (i + 1) % interval else FULL for i in range(num_layers)]
    if given is None:
        return expected
    if not isinstance(given, list) or any(name not in _KINDS for name in given if _is_text(name)):
        fields.refuse("layer_types", f"is not a list of {' and '.join(_KINDS)}")
        return expected
    kinds = [_KINDS.get(name, "") if _is_text(name) else "" for name in given]
    if len(kinds) != num_layers or "" in kinds:
        fields.refuse("layer_types", f"is not {num_layers} of {' and '.join(_KINDS)}")
        return expected
    if "full_attention_interval" in fields.document and kinds != expected:
        fields.refuse("full_attention_interval", f"{interval} contradicts layer_types")
    return kinds


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _parse_rope(fields: Fields, head_dim: int) -> tuple[float, int]:
    old, new = fields.take("rope_scaling", None), fields.take("rope_parameters", None)
    if old is not None and new is not None:
        fields.refuse("rope_scaling", "given together with rope_parameters")
    outer_theta = fields.number("rope_theta", default=10_000.0)
    outer_factor = fields.number("partial_rotary_factor", default=0.25)
    name = "rope_scaling" if old is not None else "rope_parameters"
    inner = fields.child(name, old if old is not None else {} if new is None else new)
    theta = inner.number("rope_theta", default=outer_theta)
    factor = inner.number("partial_rotary_factor", default=outer_factor)
    kind = inner.text("rope_type", default=inner.text("type", default="default"))
    if kind != "default":
        inner.refuse("rope_type", f"{kind!r} is not supported, only 'default'")
    # Positions of text are equal on all of the axes that these would tell apart.
    inner.refuse_rest(frozenset(("mrope_interleaved", "mrope_section")))
    return theta, int(head_dim * min(factor, 1e6))

"""The Llama family's normalized configuration, read from a model's ``config.json``.

The only file of the family that knows the published field names. Whatever would change the model
and is not supported is refused by name, all of it at once; fields without influence on inference
are ignored by an explicit list, never by default. Imports no torch.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.adapters.common.fields import Fields
from harness.adapters.common.published import GENERAL_FIELDS, NO_OTHER_KIND_OF_MODEL

_IGNORED = GENERAL_FIELDS | {"attention_dropout", "is_llama_config", "transformers.js_config"}
"""Fields that do not change what one inference step computes."""

_MUST_BE: Mapping[str, tuple[Any, ...]] = {
    **NO_OTHER_KIND_OF_MODEL,
    "architectures": (None, ["LlamaForCausalLM"]),
    "hidden_act": ("silu",),
    "model_type": ("llama",),
    "partial_rotary_factor": (None, 1.0, 1),
    "pretraining_tp": (None, 1),
    "quantization_config": (None,),
    "rope_interleaved": (None, False),
}
"""Fields that change the model, with the values that are supported; absent is supported too."""

MAX_LAYERS = 4096


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched. Fields that a kind does not use are ``None``."""

    kind: str
    """``default``, ``linear``, ``dynamic``, ``llama3`` or ``yarn``."""
    factor: float | None = None
    original_max_positions: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool | None = None


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """One decoder of the family, in this project's words."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    tied: bool
    """Whether the head shares the embedding's table."""
    max_position_embeddings: int
    attention_bias: bool
    mlp_bias: bool

    @property
    def q_rows(self) -> int:
        """Rows of the query projection."""
        return self.num_heads * self.head_dim

    @property
    def kv_rows(self) -> int:
        """Rows of the key projection, and of the value projection."""
        return self.num_kv_heads * self.head_dim

    def document(self) -> dict[str, Any]:
        """The normalized form that a plan carries; :func:`read_config` reads it back."""
        scaling = {k: v for k, v in asdict(self.rope_scaling).items() if v is not None}
        document = asdict(self)
        del document["rope_theta"], document["rope_scaling"]
        return {**document, "rope": {"theta": self.rope_theta, "scaling": scaling}}


def parse_document(document: Mapping[str, Any]) -> LlamaConfig:
    """Read a model's ``config.json``.

    Raises:
        PlanError: Listing every field that is missing, mistyped, unknown or not supported.
    """
    fields = Fields(document, rule="model-configuration")
    hidden_size = fields.size("hidden_size")
    num_heads = fields.size("num_attention_heads")
    max_positions = fields.size("max_position_embeddings", default=2048)
    theta, scaling = _parse_rope(fields, max_positions)
    config = LlamaConfig(
        num_layers=fields.size("num_hidden_layers", most=MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=fields.size("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.size("num_key_value_heads", default=num_heads),
        head_dim=fields.size("head_dim", default=max(1, hidden_size // num_heads)),
        vocab_size=fields.size("vocab_size"),
        rms_norm_eps=fields.number("rms_norm_eps", default=1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tied=fields.flag("tie_word_embeddings", default=False),
        max_position_embeddings=max_positions,
        attention_bias=fields.flag("attention_bias", default=False),
        mlp_bias=fields.flag("mlp_bias", default=False),
    )
    fields.require(_MUST_BE)
    if "head_dim" not in document and hidden_size % num_heads:
        fields.refuse("num_attention_heads", f"{num_heads} does not divide {hidden_size}")
    fields.refuse_rest(_IGNORED)
    _check_shapes(fields, config)
    fields.raise_if_any("this Llama configuration is not supported")
    return config


def read_config(document: Mapping[str, Any]) -> LlamaConfig:
    """Read the normalized form, as a plan carries it.

    Raises:
        PlanError: Listing every field that is missing, mistyped or unknown.
    """
    fields = Fields(document, rule="adapter-configuration", path="$.adapter_data.config")
    rope = fields.nested("rope")
    scaling = rope.nested("scaling")
    theta = rope.number("theta")
    rope.refuse_rest()
    config = LlamaConfig(
        num_layers=fields.size("num_layers", most=MAX_LAYERS),
        hidden_size=fields.size("hidden_size"),
        intermediate_size=fields.size("intermediate_size"),
        num_heads=fields.size("num_heads"),
        num_kv_heads=fields.size("num_kv_heads"),
        head_dim=fields.size("head_dim"),
        vocab_size=fields.size("vocab_size"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=_scaling(scaling, scaling.text("kind"), original=None),
        tied=fields.flag("tied"),
        max_position_embeddings=fields.size("max_position_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
    )
    scaling.refuse_rest()
    fields.refuse_rest()
    _check_shapes(fields, config)
    fields.raise_if_any("the plan's model configuration is not valid")
    return config


def _parse_rope(fields: Fields, max_positions: int) -> tuple[float, RopeScaling]:
    old, new = fields.take("rope_scaling", None), fields.take("rope_parameters", None)
    outer_theta = fields.number("rope_theta", default=10_000.0)
    if old is not None and new is not None:
        fields.refuse("rope_scaling", "given together with rope_parameters")
    name = "rope_scaling" if old is not None else "rope_parameters"
    inner = fields.child(name, {} if old is None and new is None else new if old is None else old)
    theta = inner.number("rope_theta", default=outer_theta)
    kind = inner.text("rope_type", default=inner.text("type", default="default"))
    factor = inner.take("partial_rotary_factor", None)
    if factor not in (None, 1, 1.0):
        inner.refuse("partial_rotary_factor", f"{factor!r} is not supported, only 1.0")
    scaling = _scaling(inner, kind, original=max_positions)
    inner.refuse_rest()
    return theta, scaling


def _scaling(fields: Fields, kind: str, *, original: int | None) -> RopeScaling:
    """One scaling in either naming; ``original`` is ``None`` for the normalized one."""
    published = original is not None
    window = "original_max_position_embeddings" if published else "original_max_positions"
    match kind:
        case "default":
            return RopeScaling(kind=kind)
        case "linear" | "dynamic":
            return RopeScaling(kind=kind, factor=fields.number("factor"))
        case "llama3":
            return RopeScaling(
                kind=kind,
                factor=fields.number("factor"),
                original_max_positions=fields.size(window, default=original),
                low_freq_factor=fields.number("low_freq_factor"),
                high_freq_factor=fields.number("high_freq_factor"),
            )
        case "yarn":
            factor = fields.number("factor")
            default = _yarn_attention_factor(fields, factor) if published else None
            return RopeScaling(
                kind=kind,
                factor=factor,
                original_max_positions=fields.size(window, default=original),
                attention_factor=fields.number("attention_factor", default=default),
                beta_fast=fields.number("beta_fast", default=32.0 if published else None),
                beta_slow=fields.number("beta_slow", default=1.0 if published else None),
                truncate=fields.flag("truncate", default=True if published else None),
            )
    fields.refuse(
        "rope_type" if published else "kind",
        f"{kind!r} is not supported, only default, linear, dynamic, llama3, yarn",
    )
    return RopeScaling(kind="default")


def _yarn_attention_factor(fields: Fields, factor: float) -> float:
    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    above = fields.number("mscale", default=0.0, least=0.0)
    below = fields.number("mscale_all_dim", default=0.0, least=0.0)
    return scale(above) / scale(below) if above and below else scale(1.0)


def _check_shapes(fields: Fields, config: LlamaConfig) -> None:
    if config.num_heads % config.num_kv_heads:
        fields.refuse(
            "num_kv_heads" if "num_kv_heads" in fields.document else "num_key_value_heads",
            f"{config.num_kv_heads} does not divide {config.num_heads} query heads",
        )
    if config.head_dim % 2:
        fields.refuse("head_dim", f"{config.head_dim} is odd; rotary embedding pairs elements")
    scaling = config.rope_scaling
    if scaling.kind == "dynamic" and config.head_dim == 2:
        fields.refuse("head_dim", "2 is too small for dynamic rotary scaling")
    if scaling.kind == "llama3" and scaling.low_freq_factor == scaling.high_freq_factor:
        fields.refuse("low_freq_factor", "equals high_freq_factor")
    if scaling.kind == "yarn" and config.rope_theta == 1:
        fields.refuse("rope_theta", "1 has no frequencies to interpolate")

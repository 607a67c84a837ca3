"""Reads a published ``config.json`` of Gemma 3 or Gemma 4 into the normalized configuration.

With the files named after it, the only one of the family that knows published field names.
Whatever would change the model and is not supported is refused by name, all of it at once; fields
without influence on inference are ignored by an explicit list, never by default. A document of more
modalities is read for the text model in it. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.adapters.common.fields import Fields
from harness.adapters.gemma.config import (
    MAX_LAYERS,
    AttentionKind,
    GemmaConfig,
    check_shapes,
)
from harness.adapters.gemma.published_names import (
    FULL_ATTENTION,
    IGNORED,
    IGNORED_AROUND,
    MUST_BE,
    MUST_BE_AROUND,
    MUST_BE_GEMMA3,
    MUST_BE_GEMMA4,
    SLIDING_ATTENTION,
)
from harness.adapters.gemma.published_rope import frequencies, rope_of_gemma3, rope_of_gemma4
from harness.state.geometry import FULL, SWA, Kind

_KINDS: Mapping[str, Kind] = {FULL_ATTENTION: FULL, SLIDING_ATTENTION: SWA}


@dataclass(frozen=True, kw_only=True)
class _Generation:
    """What a document need not say, since its model type does. Defaults are those published."""

    text_type: str
    class_prefix: str
    """How the names of its classes begin."""
    must_be: Mapping[str, tuple[Any, ...]]
    vocab_size: int
    window: int
    is_gemma3: bool = False
    has_layer_embeddings: bool = False
    """Whether tables of further embeddings, one per layer, are there when nothing is said."""


_GEMMA3 = _Generation(
    text_type="gemma3_text",
    class_prefix="Gemma3",
    must_be=MUST_BE_GEMMA3,
    vocab_size=262_208,
    window=4096,
    is_gemma3=True,
)
_GEMMA4 = _Generation(
    text_type="gemma4_text",
    class_prefix="Gemma4",
    must_be=MUST_BE_GEMMA4,
    vocab_size=262_144,
    window=512,
    has_layer_embeddings=True,
)
_GEMMA4_UNIFIED = _Generation(
    text_type="gemma4_unified_text",
    class_prefix="Gemma4Unified",
    must_be=MUST_BE_GEMMA4,
    vocab_size=262_144,
    window=1024,
)


@dataclass(frozen=True, kw_only=True)
class _DocumentType:
    generation: _Generation
    key_prefix: str
    is_nested: bool
    """Whether the text model's configuration is ``text_config``."""


_DOCUMENT_TYPES: Mapping[str, _DocumentType] = {
    model_type: _DocumentType(generation=generation, key_prefix=prefix, is_nested=is_nested)
    for model_type, generation, prefix, is_nested in (
        ("gemma3_text", _GEMMA3, "model.", False),
        ("gemma3", _GEMMA3, "language_model.model.", True),
        ("gemma4_text", _GEMMA4, "model.", False),
        ("gemma4", _GEMMA4, "model.language_model.", True),
        ("gemma4_unified_text", _GEMMA4_UNIFIED, "model.", False),
        ("gemma4_unified", _GEMMA4_UNIFIED, "model.language_model.", True),
    )
}


def parse_document(document: Mapping[str, Any]) -> GemmaConfig:
    """Read a model's ``config.json``.

    Raises:
        PlanError: Listing every field that is missing, mistyped, unknown or not supported.
    """
    fields = Fields(document, rule="model-configuration")
    model_type = fields.text("model_type")
    found = _DOCUMENT_TYPES.get(model_type)
    if found is None:
        wanted = ", ".join(sorted(_DOCUMENT_TYPES))
        fields.refuse("model_type", f"{model_type!r} is not supported, only {wanted}")
        fields.raise_if_any("this Gemma configuration is not supported")
    assert found is not None
    text = fields
    if found.is_nested:
        text = fields.nested("text_config")
        must_be = {
            **MUST_BE_AROUND,
            "architectures": _classes(found.generation, "ForConditionalGeneration"),
        }
        fields.require(must_be)
        fields.refuse_rest(IGNORED_AROUND)
    config = _text(text, found)
    fields.raise_if_any("this Gemma configuration is not supported")
    return config


def _text(fields: Fields, document: _DocumentType) -> GemmaConfig:
    generation = document.generation
    num_layers = fields.size("num_hidden_layers", most=MAX_LAYERS)
    types = _layer_types(fields, generation, num_layers)
    shapes = _kv_shapes(fields, generation, types)
    equal = False if generation.is_gemma3 else fields.flag("attention_k_eq_v", default=False)
    rope = rope_of_gemma3(fields) if generation.is_gemma3 else rope_of_gemma4(fields)
    kinds: dict[Kind, AttentionKind] = {}
    for name, kind in _KINDS.items():
        if name in types:
            num_kv_heads, head_dim = shapes[name]
            theta, factor, pairs = frequencies(rope[name], head_dim)
            kinds[kind] = AttentionKind(
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                values_from_keys=equal and kind == FULL,
                rope_theta=theta,
                rope_factor=factor,
                rope_pairs=pairs,
            )
    config = GemmaConfig(
        key_prefix=document.key_prefix,
        num_layers=num_layers,
        hidden_size=fields.size("hidden_size"),
        intermediate_size=fields.size("intermediate_size"),
        num_heads=fields.size("num_attention_heads", default=8),
        vocab_size=fields.size("vocab_size", default=generation.vocab_size),
        rms_norm_eps=fields.number("rms_norm_eps", default=1e-6),
        norm_unit_offset=generation.is_gemma3,
        value_norm=not generation.is_gemma3,
        layer_scalar=not generation.is_gemma3,
        attention_scale=_attention_scale(fields, generation),
        logit_softcap=_softcap(fields),
        window=_window(fields, generation) if SWA in kinds else None,
        layer_kinds=tuple(_KINDS[name] for name in types),
        full=kinds.get(FULL),
        swa=kinds.get(SWA),
    )
    must_be = {
        **MUST_BE,
        **generation.must_be,
        "architectures": _classes(generation, "ForCausalLM"),
        "model_type": (generation.text_type,),
    }
    if generation.has_layer_embeddings and "hidden_size_per_layer_input" not in fields.document:
        message = "is absent, which means per-layer embeddings of 256; they are not supported"
        fields.refuse("hidden_size_per_layer_input", message)
    fields.require(must_be)
    fields.refuse_rest(IGNORED)
    check_shapes(fields, config, num_kv_heads="num_key_value_heads")
    return config


def _classes(generation: _Generation, suffix: str) -> tuple[Any, ...]:
    return (None, [generation.class_prefix + suffix])


def _layer_types(fields: Fields, generation: _Generation, num_layers: int) -> list[str]:
    """The published kind of each layer, given or by the pattern: the last of so many is full."""
    pattern = 6
    if generation.is_gemma3:
        pattern = fields.size("sliding_window_pattern", default=6)
        saved = fields.take("_sliding_window_pattern", None)
    given = fields.take("layer_types", None)
    if given is not None:
        known = list(_KINDS)
        if not isinstance(given, list) or len(given) != num_layers:
            fields.refuse("layer_types", f"is not a list of {num_layers} kinds")
        elif not all(one in known for one in given):
            fields.refuse("layer_types", f"a kind is not one of {', '.join(known)}")
        elif not generation.is_gemma3 and given[-1] != FULL_ATTENTION:
            fields.refuse("layer_types", "the last layer is not full_attention")
        else:
            return list(given)
        return []
    if generation.is_gemma3 and saved not in (None, pattern):
        message = f"{saved!r} without layer_types is not the pattern in use, {pattern}"
        fields.refuse("_sliding_window_pattern", message)
    types = [
        SLIDING_ATTENTION if (layer + 1) % pattern else FULL_ATTENTION
        for layer in range(num_layers)
    ]
    if not generation.is_gemma3:
        types[-1] = FULL_ATTENTION
    return types


def _kv_shapes(
    fields: Fields, generation: _Generation, types: list[str]
) -> dict[str, tuple[int, int]]:
    """KV heads and head size of each published kind of layer."""
    base = (
        fields.size("num_key_value_heads", default=4),
        fields.size("head_dim", default=256),
    )
    shapes = dict.fromkeys(_KINDS, base)
    if generation.is_gemma3:
        return shapes
    head_dim = fields.size("global_head_dim", default=512)
    num_kv_heads = fields.size("num_global_key_value_heads", default=base[0])
    saved = fields.take("per_layer_config", None)
    if saved is not None:
        return _kv_shapes_by_layer(fields.child("per_layer_config", saved), base, types)
    if fields.document.get("attention_k_eq_v") is not True:
        num_kv_heads = base[0]
    shapes[FULL_ATTENTION] = (num_kv_heads, head_dim)
    return shapes


def _kv_shapes_by_layer(
    fields: Fields, base: tuple[int, int], types: list[str]
) -> dict[str, tuple[int, int]]:
    """The same, from what single layers have instead of the common sizes."""
    shapes: dict[str, tuple[int, int]] = dict.fromkeys(_KINDS, base)
    seen: set[str] = set()
    for layer, name in enumerate(types):
        found = base
        if str(layer) in fields.document:
            inner = fields.nested(str(layer))
            found = (
                inner.size("num_key_value_heads", default=base[0]),
                inner.size("head_dim", default=base[1]),
            )
            inner.refuse_rest()
        if name in seen and found != shapes[name]:
            message = f"differs from other layers of {name}; they must be equal"
            fields.refuse(str(layer), message)
        seen.add(name)
        shapes[name] = found
    fields.refuse_rest()
    return shapes


def _attention_scale(fields: Fields, generation: _Generation) -> float:
    if not generation.is_gemma3:
        return 1.0
    return float(fields.number("query_pre_attn_scalar", default=256.0) ** -0.5)


def _softcap(fields: Fields) -> float | None:
    if fields.take("final_logit_softcapping", None) is None:
        return None
    return fields.number("final_logit_softcapping")


def _window(fields: Fields, generation: _Generation) -> int:
    if fields.document.get("sliding_window", generation.window) is None:
        fields.refuse("sliding_window", "is null, and there are sliding_attention layers")
    return fields.size("sliding_window", default=generation.window)

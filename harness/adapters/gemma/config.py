"""The Gemma family's normalized configuration, as plans carry it.

In this project's words only; :mod:`harness.adapters.gemma.published` reads a model's own file.
What differs between generations is a field here, so that nothing else asks which one it is.
Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from harness.adapters.common.fields import Fields
from harness.state.geometry import FULL, SWA, Kind

MAX_LAYERS = 4096
KEY_PREFIXES = ("model.", "model.language_model.", "language_model.model.")
"""Where a checkpoint keeps the text model: by itself, or within a model of more modalities."""


@dataclass(frozen=True, kw_only=True)
class AttentionKind:
    """What all layers of one kind share."""

    num_kv_heads: int
    head_dim: int
    values_from_keys: bool
    """The values are the key projection's output; the checkpoint has no value projection."""
    rope_theta: float
    rope_factor: float
    """Frequencies are divided by it."""
    rope_pairs: int
    """The first so many of the head_dim / 2 pairs rotate, the others keep their direction."""

    @property
    def kv_rows(self) -> int:
        """Rows of the key projection, and of the value projection."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class GemmaConfig:
    """One decoder of the family."""

    key_prefix: str
    """What the keys of its tensors begin with."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    vocab_size: int
    rms_norm_eps: float
    norm_unit_offset: bool
    """Whether norms multiply by 1 + w, not by w."""
    value_norm: bool
    """Whether each head's value is normed, without a weight."""
    layer_scalar: bool
    """Whether a layer's output is multiplied by a number of its own."""
    attention_scale: float
    logit_softcap: float | None
    window: int | None
    """Positions that a row of a ``swa`` layer reads, its own included; ``None`` without any."""
    layer_kinds: tuple[Kind, ...]
    full: AttentionKind | None
    swa: AttentionKind | None

    def kind(self, kind: Kind) -> AttentionKind:
        """The layers of one kind, of which there are some."""
        found = self.full if kind == FULL else self.swa
        assert found is not None
        return found

    def q_rows(self, kind: Kind) -> int:
        """Rows of the query projection."""
        return self.num_heads * self.kind(kind).head_dim

    def kinds_in(self, start_layer: int, end_layer: int) -> tuple[Kind, ...]:
        """Kinds of the layers [start, end), ``full`` first."""
        return tuple(k for k in (FULL, SWA) if k in self.layer_kinds[start_layer:end_layer])

    def document(self) -> dict[str, Any]:
        """The normalized form that a plan carries; :func:`read_config` reads it back."""
        return {**asdict(self), "layer_kinds": list(self.layer_kinds)}


def read_config(document: Mapping[str, Any]) -> GemmaConfig:
    """Read the normalized form, as a plan carries it.

    Raises:
        PlanError: Listing every field that is missing, mistyped, unknown or contradictory.
    """
    fields = Fields(document, rule="adapter-configuration", path="$.adapter_data.config")
    num_layers = fields.size("num_layers", most=MAX_LAYERS)
    kinds = _layer_kinds(fields, num_layers)
    config = GemmaConfig(
        key_prefix=fields.text("key_prefix"),
        num_layers=num_layers,
        hidden_size=fields.size("hidden_size"),
        intermediate_size=fields.size("intermediate_size"),
        num_heads=fields.size("num_heads"),
        vocab_size=fields.size("vocab_size"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        norm_unit_offset=fields.flag("norm_unit_offset"),
        value_norm=fields.flag("value_norm"),
        layer_scalar=fields.flag("layer_scalar"),
        attention_scale=fields.number("attention_scale"),
        logit_softcap=_optional_number(fields, "logit_softcap"),
        window=_window(fields, SWA in kinds),
        layer_kinds=kinds,
        full=_read_kind(fields, FULL, FULL in kinds),
        swa=_read_kind(fields, SWA, SWA in kinds),
    )
    if config.key_prefix not in KEY_PREFIXES:
        wanted = ", ".join(KEY_PREFIXES)
        fields.refuse("key_prefix", f"{config.key_prefix!r} is not one of {wanted}")
    fields.refuse_rest()
    check_shapes(fields, config, num_kv_heads="num_kv_heads")
    fields.raise_if_any("the plan's model configuration is not valid")
    return config


def check_shapes(fields: Fields, config: GemmaConfig, *, num_kv_heads: str) -> None:
    """Refuse heads that cannot be grouped or rotated, under the name that the file gives them."""
    for kind in (config.full, config.swa):
        if kind is None:
            continue
        if config.num_heads % kind.num_kv_heads:
            message = f"{kind.num_kv_heads} does not divide {config.num_heads} query heads"
            fields.refuse(num_kv_heads, message)
        if kind.head_dim % 2:
            fields.refuse("head_dim", f"{kind.head_dim} is odd; rotary embedding pairs elements")
        elif kind.rope_pairs > kind.head_dim // 2:
            message = f"{kind.rope_pairs} is more than half of head_dim {kind.head_dim}"
            fields.refuse("rope_pairs", message)


def _layer_kinds(fields: Fields, num_layers: int) -> tuple[Kind, ...]:
    found, known = fields.take("layer_kinds"), get_args(Kind)
    if isinstance(found, list) and len(found) == num_layers and all(one in known for one in found):
        return tuple(found)
    message = f"is not a list of {num_layers} of {', '.join(known)}"
    fields.refuse("layer_kinds", message)
    return ()


def _is_null(fields: Fields, name: str) -> bool:
    return name in fields.document and fields.take(name) is None


def _optional_number(fields: Fields, name: str) -> float | None:
    return None if _is_null(fields, name) else fields.number(name)


def _window(fields: Fields, is_needed: bool) -> int | None:
    if is_needed:
        return fields.size("window")
    if not _is_null(fields, "window"):
        fields.refuse("window", "is not null, and no layer has one")
    return None


def _read_kind(fields: Fields, kind: Kind, is_needed: bool) -> AttentionKind | None:
    if not is_needed:
        if not _is_null(fields, kind):
            fields.refuse(kind, "is not null, and no layer is of this kind")
        return None
    inner = fields.nested(kind)
    found = AttentionKind(
        num_kv_heads=inner.size("num_kv_heads"),
        head_dim=inner.size("head_dim"),
        values_from_keys=inner.flag("values_from_keys"),
        rope_theta=inner.number("rope_theta"),
        rope_factor=inner.number("rope_factor"),
        rope_pairs=inner.size("rope_pairs"),
    )
    inner.refuse_rest()
    return found

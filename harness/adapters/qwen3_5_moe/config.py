"""The family's normalized configuration, as a plan carries it. Imports no torch.

Knows no published field name; those are read in
:mod:`harness.adapters.qwen3_5_moe.published_config`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.adapters.common.fields import Fields
from harness.adapters.qwen3_5_moe.quantization import FP8, NVFP4, NVFP4_BLOCK, PLAIN

MAX_LAYERS = 512
MAX_EXPERTS = 2048

LINEAR = "linear"
"""A layer with a gated delta rule over a recurrent state."""
FULL = "full"
"""A layer with gated attention over all positions."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: its token mixer, and the numeric formats of its parts on disk."""

    kind: str
    """``linear`` or ``full``."""
    mixer: str
    """``plain``, ``fp8`` or ``nvfp4``, as for the other parts."""
    experts: str
    shared: str


@dataclass(frozen=True, kw_only=True)
class QwenConfig:
    """One decoder of the family, in this project's words."""

    hidden_size: int
    vocab_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    tied: bool
    """Whether the head shares the embedding's table."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    """Rotated elements at the front of each head."""
    rope_theta: float
    num_key_heads: int
    """Key (and query) heads of the linear layers."""
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_width: int
    """Taps of the causal convolution, the present one included."""
    num_experts: int
    top_k: int
    expert_size: int
    """Intermediate size of a routed expert."""
    shared_size: int
    """Intermediate size of the shared expert."""
    head: str
    """Format of the head on disk."""
    key_prefix: str
    """What stands before ``layers.`` in the names of tensors."""
    layers: tuple[Layer, ...]

    @property
    def num_layers(self) -> int:
        """Layers of the whole model."""
        return len(self.layers)

    @property
    def key_rows(self) -> int:
        """Rows of the linear layers' key projection, and of the query projection."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_rows(self) -> int:
        """Rows of the linear layers' value projection, and of the output gate."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_rows(self) -> int:
        """Channels of the convolution: queries, keys, values."""
        return 2 * self.key_rows + self.value_rows

    @property
    def q_rows(self) -> int:
        """Elements of all query heads together; the projection has as many gates besides."""
        return self.num_heads * self.head_dim

    @property
    def kv_rows(self) -> int:
        """Rows of the full layers' key projection, and of the value projection."""
        return self.num_kv_heads * self.head_dim

    def document(self) -> dict[str, Any]:
        """The normalized form that a plan carries; :func:`read_config` reads it back."""
        document = asdict(self)
        document["layers"] = [asdict(layer) for layer in self.layers]
        return {**document, "num_layers": self.num_layers}


def read_config(document: Mapping[str, Any]) -> QwenConfig:
    """Read the normalized form, as a plan carries it.

    Raises:
        PlanError: Listing every field that is missing, mistyped or unknown.
    """
    fields = Fields(document, rule="adapter-configuration", path="$.adapter_data.config")
    sizes = {
        name: fields.size(name)
        for name, kind in QwenConfig.__annotations__.items()
        if kind is int and name not in ("num_experts", "conv_width")
    }
    layers = _read_layers(fields)
    num_layers = fields.size("num_layers", most=MAX_LAYERS)
    if num_layers != len(layers):
        fields.refuse("num_layers", f"{num_layers}, but {len(layers)} layers are described")
    config = QwenConfig(
        **sizes,
        num_experts=fields.size("num_experts", most=MAX_EXPERTS),
        conv_width=fields.size("conv_width", most=64),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope_theta=fields.number("rope_theta"),
        tied=fields.flag("tied"),
        head=_one_of(fields, "head", (PLAIN, FP8, NVFP4)),
        key_prefix=fields.text("key_prefix"),
        layers=layers,
    )
    fields.refuse_rest()
    check_shapes(fields, config)
    fields.raise_if_any("the plan's model configuration is not valid")
    return config


def _read_layers(fields: Fields) -> tuple[Layer, ...]:
    listed = fields.take("layers")
    if not isinstance(listed, list | tuple) or not 0 < len(listed) <= MAX_LAYERS:
        fields.refuse("layers", f"is not a list of 1 to {MAX_LAYERS} layers")
        return ()
    layers = []
    for index, item in enumerate(listed):
        layer = fields.child(f"layers[{index}]", item)
        layers.append(
            Layer(
                kind=_one_of(layer, "kind", (LINEAR, FULL)),
                mixer=_one_of(layer, "mixer", (PLAIN, FP8, NVFP4)),
                experts=_one_of(layer, "experts", (PLAIN, NVFP4)),
                shared=_one_of(layer, "shared", (PLAIN, NVFP4)),
            )
        )
        layer.refuse_rest()
    return tuple(layers)


def _one_of(fields: Fields, name: str, known: tuple[str, ...]) -> str:
    value = fields.text(name)
    if value not in known:
        fields.refuse(name, f"{value!r} is not one of {', '.join(known)}")
        return known[0]
    return value


def check_shapes(fields: Fields, config: QwenConfig) -> None:
    """Refuse sizes that contradict each other."""
    for name, parts, whole, what in (
        ("num_kv_heads", config.num_kv_heads, config.num_heads, "query heads"),
        ("num_key_heads", config.num_key_heads, config.num_value_heads, "value heads"),
    ):
        if whole % parts:
            fields.refuse(name, f"{parts} does not divide {whole} {what}")
    if config.top_k > config.num_experts:
        fields.refuse("top_k", f"{config.top_k} of {config.num_experts} experts")
    if config.rotary_dim % 2 or not 0 < config.rotary_dim <= config.head_dim:
        message = f"{config.rotary_dim} of {config.head_dim} elements cannot be rotated in pairs"
        fields.refuse("rotary_dim", message)
    if config.conv_width < 2:
        fields.refuse("conv_width", "a convolution of one tap keeps no state")
    if config.tied and config.head != PLAIN:
        fields.refuse("head", f"shares the embedding's table, and is {config.head}")
    for name in sorted(_packed_columns(config)):
        size = getattr(config, name)
        if size % NVFP4_BLOCK:
            fields.refuse(name, f"{size} is not a multiple of {NVFP4_BLOCK}, as nvfp4 needs")


def _packed_columns(config: QwenConfig) -> set[str]:
    """Sizes that are columns of some packed tensor."""
    columns = {"hidden_size"} if config.head == NVFP4 else set()
    for layer in config.layers:
        if layer.mixer == NVFP4:
            columns |= {"hidden_size", "q_rows" if layer.kind == FULL else "value_rows"}
        for form, size in ((layer.experts, "expert_size"), (layer.shared, "shared_size")):
            columns |= {"hidden_size", size} if form == NVFP4 else set()
    return columns

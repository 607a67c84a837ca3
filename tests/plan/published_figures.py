"""Exact bytes of the published R1 plan's representations, from the model's dimensions alone.

The layouts are those of the published system: codes packed two to a byte, one e4m3 scale per 16
elements, global scales expanded to one fp16 per row (routed and shared experts) or one fp32 per
row (attention). On disk each projection has scalar fp32 scales instead.

Shape legend: H hidden, I intermediate of one expert, E experts, V vocabulary, L layers.
"""

from dataclasses import dataclass

_FP32, _HALF = 4, 2
_GROUP = 16
"""Elements that share one e4m3 scale."""


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """Sizes of the planned block; the defaults are those of the published plan."""

    hidden: int = 2048
    intermediate: int = 512
    num_experts: int = 256
    vocabulary: int = 248_320
    num_linear_layers: int = 15
    num_full_layers: int = 4
    num_query_heads: int = 16
    num_kv_heads: int = 2
    head_dim: int = 256
    num_key_heads: int = 16
    num_value_heads: int = 32
    linear_head_dim: int = 128
    conv_width: int = 4
    num_positions: int = 64

    @property
    def num_layers(self) -> int:
        """Layers of both kinds."""
        return self.num_linear_layers + self.num_full_layers

    @property
    def value_width(self) -> int:
        """Elements of all value heads of a linear layer."""
        return self.num_value_heads * self.linear_head_dim

    @property
    def conv_channels(self) -> int:
        """Query, key and value channels of a linear layer."""
        return 2 * self.num_key_heads * self.linear_head_dim + self.value_width

    @property
    def full_rows(self) -> int:
        """Output rows of q (query and gate), k, v and o of a full layer."""
        query = 2 * self.num_query_heads * self.head_dim
        return query + 2 * self.num_kv_heads * self.head_dim + self.hidden


@dataclass(frozen=True, kw_only=True)
class PublishedBytes:
    """The published figures, all in bytes except the tensor and key counts."""

    routed_bytes: int
    mutable_runtime_bytes: int
    non_routed_bytes: int
    required_persistent_bytes: int
    fetched_expert_bytes: int
    fetched_rest_bytes: int
    fetched_bytes: int
    transient_upper_bound_bytes: int
    unfetched_bytes: int
    """Shared-expert input scales: planned keys that were never fetched."""
    num_unfetched_keys: int
    num_tensor_keys: int
    num_staging_tensors: int
    reference_fixture_bytes: int


def _expert_codes(dims: Dimensions) -> int:
    """Packed codes and group scales of gate, up and down of one expert."""
    elements = 3 * dims.intermediate * dims.hidden
    return elements // 2 + elements // _GROUP


def _row_globals(dims: Dimensions) -> int:
    """One fp16 global scale per output row of gate, up and down."""
    return (2 * dims.intermediate + dims.hidden) * _HALF


def _common_resident(dims: Dimensions) -> int:
    """What every layer has besides attention and routed experts, without input scales."""
    norms = 2 * dims.hidden * _HALF
    router = dims.num_experts * dims.hidden * _HALF
    shared_gate = dims.hidden * _HALF
    return norms + router + shared_gate + _expert_codes(dims) + _row_globals(dims)


def _linear_common(dims: Dimensions) -> int:
    """Parts of a linear layer that are stored as they are resident."""
    weights = (dims.conv_channels + 2 * dims.value_width) * dims.hidden
    gates = 2 * dims.num_value_heads * dims.hidden * _HALF
    conv = dims.conv_channels * dims.conv_width * _HALF
    return weights + gates + conv + dims.linear_head_dim * _HALF


def _linear_resident(dims: Dimensions) -> int:
    rows = dims.conv_channels + dims.value_width + dims.hidden
    decay = 2 * dims.num_value_heads * _FP32
    return _linear_common(dims) + rows * _FP32 + decay


def _linear_stored(dims: Dimensions) -> int:
    scalars = 3 * 2 * _FP32  # weight and input scale of three projections
    return _linear_common(dims) + scalars + 2 * dims.num_value_heads * _HALF


def _full_common(dims: Dimensions) -> int:
    query = dims.num_query_heads * dims.head_dim
    into = (dims.full_rows - dims.hidden) * dims.hidden
    return into + dims.hidden * query + 2 * dims.head_dim * _HALF


def _full_resident(dims: Dimensions) -> int:
    return _full_common(dims) + dims.full_rows * _FP32


def _full_stored(dims: Dimensions) -> int:
    return _full_common(dims) + 4 * 2 * _FP32  # weight and input scale of four projections


def _runtime(dims: Dimensions) -> int:
    conv = dims.conv_channels * (dims.conv_width - 1) * _HALF
    state = dims.num_value_heads * dims.linear_head_dim**2 * _FP32
    kv = 2 * dims.num_positions * dims.num_kv_heads * dims.head_dim * _HALF
    return dims.num_linear_layers * (conv + state) + dims.num_full_layers * kv


def _num_keys(dims: Dimensions) -> int:
    per_layer = 9 * dims.num_experts + 12 + 4  # experts; shared expert; router, gate, two norms
    linear = 3 * 3 + 6  # three quantized projections; A_log, dt_bias, conv, norm, a, b
    full = 4 * 3 + 2  # four quantized projections; two norms
    return (
        1
        + dims.num_layers * per_layer
        + dims.num_linear_layers * linear
        + dims.num_full_layers * full
    )


def published_bytes(dims: Dimensions) -> PublishedBytes:
    """Recompute every figure of the published plan and result from dimensions."""
    num_banks = dims.num_layers * dims.num_experts
    embedding = dims.vocabulary * dims.hidden * _HALF
    routed = num_banks * (_expert_codes(dims) + _row_globals(dims))
    input_scales = 2 * _FP32  # of the merged gate and up, and of down
    non_routed = (
        embedding
        + dims.num_layers * (_common_resident(dims) + input_scales)
        + dims.num_linear_layers * _linear_resident(dims)
        + dims.num_full_layers * _full_resident(dims)
    )
    scalar_globals = 3 * _FP32
    common_stored = _common_resident(dims) - _row_globals(dims) + scalar_globals
    fetched_experts = num_banks * (_expert_codes(dims) + scalar_globals)
    fetched_rest = (
        embedding
        + dims.num_layers * common_stored
        + dims.num_linear_layers * _linear_stored(dims)
        + dims.num_full_layers * _full_stored(dims)
    )
    runtime = _runtime(dims)
    num_unfetched = 3 * dims.num_layers
    return PublishedBytes(
        routed_bytes=routed,
        mutable_runtime_bytes=runtime,
        non_routed_bytes=non_routed,
        required_persistent_bytes=routed + non_routed + 2 * runtime,
        fetched_expert_bytes=fetched_experts,
        fetched_rest_bytes=fetched_rest,
        fetched_bytes=fetched_experts + fetched_rest,
        transient_upper_bound_bytes=routed + fetched_experts + fetched_rest,
        unfetched_bytes=num_unfetched * _FP32,
        num_unfetched_keys=num_unfetched,
        num_tensor_keys=_num_keys(dims),
        num_staging_tensors=6 * dims.num_layers,
        reference_fixture_bytes=10 * 8 * dims.hidden * _HALF,
    )

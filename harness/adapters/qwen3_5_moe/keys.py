"""The merged tensors of a range of layers and the checkpoint tensors that are their rows.

Pure arithmetic over the normalized configuration; imports no torch.

Shape legend: H hidden size, V vocabulary size, E experts, I expert size, S shared expert's size,
N query heads, K KV heads, D head size, C channels and W taps of the convolution.
"""

import functools
from collections.abc import Iterator

from harness.adapters.common.rows import ResidentTensor, RowSource, check_range, merged
from harness.adapters.qwen3_5_moe.config import FULL, Layer, QwenConfig
from harness.adapters.qwen3_5_moe.projections import (
    Module,
    Variant,
    input_scales,
    projection,
    with_checks,
)
from harness.adapters.qwen3_5_moe.quantization import FP8, NVFP4
from harness.plan.records import ModelRange

_KEPT = 8
"""Answers kept by each function: tens of thousands of rows that a realization asks for often."""


@functools.lru_cache(maxsize=_KEPT)
def routed_tensors(
    config: QwenConfig, spec: ModelRange, variant: Variant
) -> tuple[ResidentTensor, ...]:
    """Banks of the routed experts: each tensor holds the rows of all experts of a layer.

    Raises:
        PlanError: When the range is not within the model.
    """
    check_range(spec, config.num_layers)
    tensors: list[ResidentTensor] = []
    for index in range(spec.start_layer, spec.end_layer):
        experts = [
            f"{config.key_prefix}layers.{index}.mlp.experts.{e}." for e in range(config.num_experts)
        ]
        tensors += _mlp(
            f"layers.{index}.experts",
            experts,
            config.hidden_size,
            config.expert_size,
            config.layers[index].experts,
            variant,
        )
    return tuple(tensors)


@functools.lru_cache(maxsize=_KEPT)
def common_tensors(
    config: QwenConfig, spec: ModelRange, variant: Variant
) -> tuple[ResidentTensor, ...]:
    """Everything but the routed experts, in arena order; layers keep their global numbers.

    Raises:
        PlanError: When the range is not within the model.
    """
    check_range(spec, config.num_layers)
    tensors: list[ResidentTensor] = []
    if spec.owns_embeddings or (spec.owns_final_norm_head and config.tied):
        parts = [(f"{config.key_prefix}embed_tokens.weight", config.vocab_size)]
        tensors.append(merged("embed_tokens", (config.hidden_size,), parts))
    for index in range(spec.start_layer, spec.end_layer):
        tensors.extend(_layer(config, index, variant))
    if spec.owns_final_norm_head:
        norm = [(f"{config.key_prefix}norm.weight", config.hidden_size)]
        tensors.append(merged("final_norm", (), norm))
        if not config.tied:
            head = [Module(name="lm_head", rows=config.vocab_size)]
            tensors += projection("lm_head", head, config.hidden_size, config.head, variant)
    return tuple(tensors)


def _layer(config: QwenConfig, index: int, variant: Variant) -> Iterator[ResidentTensor]:
    layer, hidden = config.layers[index], config.hidden_size
    ours, theirs = f"layers.{index}.", f"{config.key_prefix}layers.{index}."
    yield merged(f"{ours}input_norm", (), [(f"{theirs}input_layernorm.weight", hidden)])
    mixer = _full if layer.kind == FULL else _linear
    yield from mixer(config, layer, ours, theirs, variant)
    yield merged(f"{ours}post_norm", (), [(f"{theirs}post_attention_layernorm.weight", hidden)])
    router = [(f"{theirs}mlp.gate.weight", config.num_experts)]
    yield merged(f"{ours}router", (hidden,), router)
    shared = f"{theirs}mlp.shared_expert."
    yield from _mlp(f"{ours}shared", [shared], hidden, config.shared_size, layer.shared, variant)
    yield merged(f"{ours}shared_gate", (hidden,), [(f"{theirs}mlp.shared_expert_gate.weight", 1)])
    if variant is Variant.PUBLISHED and layer.shared == NVFP4:
        modules = [Module(name=f"{shared}{p}_proj", rows=1) for p in ("gate", "up", "down")]
        # One of the merged gate and up, which read the same input, and one of down.
        yield input_scales(f"{ours}shared_input_scales", modules, kept=(0, 2))


def _linear(
    config: QwenConfig, layer: Layer, ours: str, theirs: str, variant: Variant
) -> Iterator[ResidentTensor]:
    block, hidden = f"{theirs}linear_attn.", config.hidden_size
    heads = config.num_value_heads
    qkvz = [
        Module(name=f"{block}in_proj_qkv", rows=config.conv_rows),
        Module(name=f"{block}in_proj_z", rows=config.value_rows),
    ]
    out = [Module(name=f"{block}out_proj", rows=hidden)]
    yield from projection(f"{ours}qkvz", qkvz, hidden, layer.mixer, variant)
    parts = [(f"{block}in_proj_{name}.weight", heads) for name in "ab"]
    yield merged(f"{ours}ab", (hidden,), parts)
    yield _reshaped(
        f"{ours}conv",
        f"{block}conv1d.weight",
        (config.conv_rows, config.conv_width),
        (config.conv_rows, 1, config.conv_width),
    )
    for name in ("A_log", "dt_bias"):
        yield _float32(f"{ours}{name.lower()}", f"{block}{name}", heads)
    yield merged(f"{ours}mixer_norm", (), [(f"{block}norm.weight", config.value_head_dim)])
    *weights, last = projection(f"{ours}out", out, config.value_rows, layer.mixer, variant)
    yield from weights
    yield _with_input_scales(last, [*qkvz, *out], layer, variant)


def _full(
    config: QwenConfig, layer: Layer, ours: str, theirs: str, variant: Variant
) -> Iterator[ResidentTensor]:
    block, hidden = f"{theirs}self_attn.", config.hidden_size
    qkv = [
        Module(name=f"{block}{name}_proj", rows=rows)
        for name, rows in (("q", 2 * config.q_rows), ("k", config.kv_rows), ("v", config.kv_rows))
    ]
    out = [Module(name=f"{block}o_proj", rows=hidden)]
    yield from projection(f"{ours}qkv", qkv, hidden, layer.mixer, variant)
    for name in ("q_norm", "k_norm"):
        yield merged(f"{ours}{name}", (), [(f"{block}{name}.weight", config.head_dim)])
    *weights, last = projection(f"{ours}out", out, config.q_rows, layer.mixer, variant)
    yield from weights
    yield _with_input_scales(last, [*qkv, *out], layer, variant)


def _with_input_scales(
    tensor: ResidentTensor, modules: list[Module], layer: Layer, variant: Variant
) -> ResidentTensor:
    """The published form fetches these and keeps none; the others do not fetch them."""
    if variant is Variant.PUBLISHED and layer.mixer == FP8:
        return with_checks(tensor, modules)
    return tensor


def _mlp(
    name: str, blocks: list[str], hidden: int, size: int, form: str, variant: Variant
) -> list[ResidentTensor]:
    """``gate_up`` [B * 2I, H] (gate, then up, block by block) and ``down`` [B * H, I]."""
    gate_up = [
        Module(name=f"{block}{projection_name}_proj", rows=size)
        for block in blocks
        for projection_name in ("gate", "up")
    ]
    down = [Module(name=f"{block}down_proj", rows=hidden) for block in blocks]
    return [
        *projection(f"{name}.gate_up", gate_up, hidden, form, variant),
        *projection(f"{name}.down", down, size, form, variant),
    ]


def _reshaped(
    name: str, key: str, shape: tuple[int, int], stored: tuple[int, ...]
) -> ResidentTensor:
    source = RowSource(key=key, row_offset=0, rows=shape[0], shape=stored)
    return ResidentTensor(name=name, shape=shape, sources=(source,))


def _float32(name: str, key: str, rows: int) -> ResidentTensor:
    source = RowSource(key=key, row_offset=0, rows=rows)
    return ResidentTensor(name=name, shape=(rows,), sources=(source,), dtype="float32")

"""The published checkpoint's headers with its real dimensions, written from the model's facts.

Shares nothing with the adapter: names, shapes and types are spelled out here. Data sections are
holes, so a checkpoint of 23 GB takes the disk space of its headers.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HIDDEN, VOCAB, LAYERS, EXPERTS = 2048, 248320, 40, 256
PREFIX = "model.language_model."
SIZES = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}
Row = tuple[str, str, tuple[int, ...]]

TEXT: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "bos_token_id": 248044,
    "dtype": "bfloat16",
    "eos_token_id": 248044,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 512,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": 16,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 8,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": VOCAB,
}


def document() -> dict[str, Any]:
    """A ``config.json`` as published: the text model nested, formats named module by module."""
    listed: dict[str, Any] = {}
    for layer in range(LAYERS):
        block = f"{PREFIX}layers.{layer}."
        for module in mixer_modules(layer):
            listed[f"{block}{module}"] = {"quant_algo": "FP8"}
        for module in ("mlp.experts", "mlp.shared_expert"):
            listed[f"{block}{module}"] = {"quant_algo": "NVFP4", "group_size": 16}
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "image_token_id": 248056,
        "model_type": "qwen3_5_moe",
        "quantization_config": {
            "ignore": ["lm_head", "model.visual*", "mtp*"],
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            "producer": {"name": "modelopt", "version": "0.44.0"},
            "quant_algo": "MIXED_PRECISION",
            "quant_method": "modelopt",
            "quantized_layers": listed,
        },
        "text_config": dict(TEXT),
        "tie_word_embeddings": False,
        "video_token_id": 248057,
        "vision_config": {"model_type": "qwen3_5_moe_vision"},
        "vision_end_token_id": 248054,
        "vision_start_token_id": 248053,
    }


def mixer_modules(layer: int) -> dict[str, tuple[int, int]]:
    """Quantized modules of a layer's mixer, with rows and columns."""
    if layer % 4 == 3:
        return {
            "self_attn.q_proj": (8192, HIDDEN),
            "self_attn.k_proj": (512, HIDDEN),
            "self_attn.v_proj": (512, HIDDEN),
            "self_attn.o_proj": (HIDDEN, 4096),
        }
    return {
        "linear_attn.in_proj_qkv": (8192, HIDDEN),
        "linear_attn.in_proj_z": (4096, HIDDEN),
        "linear_attn.out_proj": (HIDDEN, 4096),
    }


def _packed(module: str, rows: int, columns: int) -> Iterator[Row]:
    yield f"{module}.weight", "U8", (rows, columns // 2)
    yield f"{module}.weight_scale", "F8_E4M3", (rows, columns // 16)
    yield f"{module}.weight_scale_2", "F32", ()
    yield f"{module}.input_scale", "F32", ()


def _mlp(block: str) -> Iterator[Row]:
    yield from _packed(f"{block}gate_proj", 512, HIDDEN)
    yield from _packed(f"{block}up_proj", 512, HIDDEN)
    yield from _packed(f"{block}down_proj", HIDDEN, 512)


def layer_rows(layer: int) -> Iterator[Row]:
    """Tensors of one layer, with routed input scales that nothing uses."""
    block = f"{PREFIX}layers.{layer}."
    yield f"{block}input_layernorm.weight", "BF16", (HIDDEN,)
    yield f"{block}post_attention_layernorm.weight", "BF16", (HIDDEN,)
    for module, shape in mixer_modules(layer).items():
        yield f"{block}{module}.weight", "F8_E4M3", shape
        yield f"{block}{module}.weight_scale", "F32", ()
        yield f"{block}{module}.input_scale", "F32", ()
    if layer % 4 == 3:
        for name in ("q_norm", "k_norm"):
            yield f"{block}self_attn.{name}.weight", "BF16", (256,)
    else:
        linear = f"{block}linear_attn."
        yield f"{linear}A_log", "BF16", (32,)
        yield f"{linear}dt_bias", "BF16", (32,)
        yield f"{linear}conv1d.weight", "BF16", (8192, 1, 4)
        yield f"{linear}norm.weight", "BF16", (128,)
        for name in ("in_proj_a", "in_proj_b"):
            yield f"{linear}{name}.weight", "BF16", (32, HIDDEN)
    yield f"{block}mlp.gate.weight", "BF16", (EXPERTS, HIDDEN)
    yield f"{block}mlp.shared_expert_gate.weight", "BF16", (1, HIDDEN)
    yield from _mlp(f"{block}mlp.shared_expert.")
    for expert in range(EXPERTS):
        yield from _mlp(f"{block}mlp.experts.{expert}.")


def rows() -> Iterator[Row]:
    """Every tensor: the text model, a vision tower and a head for further tokens."""
    yield f"{PREFIX}embed_tokens.weight", "BF16", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        yield from layer_rows(layer)
    yield f"{PREFIX}norm.weight", "BF16", (HIDDEN,)
    yield "lm_head.weight", "BF16", (VOCAB, HIDDEN)
    for block in range(27):
        yield f"model.visual.blocks.{block}.attn.qkv.weight", "BF16", (3456, 1152)
    for name in ("fc", "layers.0.self_attn.o_proj"):
        yield f"mtp.{name}.weight", "BF16", (HIDDEN, 2 * HIDDEN)


def write_headers(folder: Path, *, num_shards: int = 3) -> None:
    """Write shards of real headers and holes, with an index and ``config.json``."""
    listed = list(rows())
    size = -(-len(listed) // num_shards)
    index = {}
    for shard in range(num_shards):
        name = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        header, end = {}, 0
        for key, dtype, shape in listed[shard * size : (shard + 1) * size]:
            count = SIZES[dtype]
            for extent in shape:
                count *= extent
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": (end, end + count)}
            end += count
            index[key] = name
        text = json.dumps(header).encode()
        with (folder / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            os.truncate(file.fileno(), 8 + len(text) + end)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text(json.dumps(document()))

"""Converts a GGUF file of Gemma 3 text into HF files: converter ``gguf-gemma/1``.

GGUF stores 1 + w of every norm, in float32; here the one is taken off again in float32 and only
then is w rounded to bfloat16. In this order the original bfloat16 w returns bit for bit wherever
1 + w was exact in float32; rounding 1 + w first would leave w in steps of 2**-7. Query and key rows
are in HF's order already. What GGUF leaves to the reader, since it is the same in every Gemma 3, is
written out: the pattern of sliding and full layers and the local RoPE base.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.checkpoint.gguf_convert import Progress, Recipe, convert_file
from harness.checkpoint.gguf_file import (
    Change,
    GgufFile,
    Wanted,
    block_key,
    count,
    require_architecture,
    shortest,
)
from harness.checkpoint.gguf_spm_tokenizer import tokenizer_document
from harness.errors import CheckpointError

CONVERTER = "gguf-gemma/1"
_SLIDING_PATTERN = 6
"""The last layer of so many is a full one."""
_LOCAL_ROPE_THETA = 10000.0
_NUM_LAYERS_27B = 62
"""The one size whose attention scale does not follow from its head_dim."""
_FIELDS = frozenset(
    {
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "rope.freq_base",
        "vocab_size",
    }
)
"""Those that are converted; another (such as RoPE scaling) would change the model."""
_BLOCK_NAMES: Mapping[str, str] = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
}
_GLOBAL_NAMES: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}


def convert(source: Path, folder: Path, *, dtype: str, progress: Progress | None = None) -> None:
    """Convert a file as :func:`~harness.checkpoint.gguf_convert.convert_file` says."""
    recipe = Recipe(config=_config, tokenizer=tokenizer_document, wanted=_wanted)
    convert_file(recipe, source, folder, dtype=dtype, progress=progress)


def _config(file: GgufFile, dtype: str) -> dict[str, Any]:
    fields = file.fields
    require_architecture(fields, "gemma3", "Gemma 3")
    _refuse_others(fields)
    num_layers = count(fields, "gemma3.block_count")
    head_dim = count(fields, "gemma3.attention.key_length")
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "final_logit_softcapping": None,
        "head_dim": head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": count(fields, "gemma3.embedding_length"),
        "intermediate_size": count(fields, "gemma3.feed_forward_length"),
        "layer_types": [
            "sliding_attention" if (layer + 1) % _SLIDING_PATTERN else "full_attention"
            for layer in range(num_layers)
        ],
        "max_position_embeddings": count(fields, "gemma3.context_length"),
        "num_attention_heads": count(fields, "gemma3.attention.head_count"),
        "num_hidden_layers": num_layers,
        "num_key_value_heads": count(fields, "gemma3.attention.head_count_kv"),
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "query_pre_attn_scalar": head_dim,
        "rms_norm_eps": shortest(fields["gemma3.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {
            "full_attention": {
                "rope_theta": shortest(fields["gemma3.rope.freq_base"]),
                "rope_type": "default",
            },
            "sliding_attention": {"rope_theta": _LOCAL_ROPE_THETA, "rope_type": "default"},
        },
        "sliding_window": count(fields, "gemma3.attention.sliding_window"),
        "tie_word_embeddings": True,
        "torch_dtype": dtype,
        "use_bidirectional_attention": False,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
    }


def _refuse_others(fields: Mapping[str, Any]) -> None:
    problems = sorted(
        f"{name} is not converted"
        for name in fields
        if name.startswith("gemma3.") and name.removeprefix("gemma3.") not in _FIELDS
    )
    key, value = (fields[f"gemma3.attention.{side}_length"] for side in ("key", "value"))
    if key != value:
        problems.append(f"key length {key} is not value length {value}")
    if fields["gemma3.block_count"] == _NUM_LAYERS_27B:
        problems.append(f"{_NUM_LAYERS_27B} layers: the attention scale of 27B is not converted")
    if problems:
        raise CheckpointError("this Gemma 3 model is not converted", got="; ".join(problems[:20]))


def _wanted(config: Mapping[str, Any]) -> Wanted:
    return Wanted(model="Gemma 3", shapes=_shapes(config), key=_key, change=_change)


def _key(name: str) -> str | None:
    return _GLOBAL_NAMES.get(name) or block_key(name, _BLOCK_NAMES)


def _change(name: str) -> Change:
    return Change(values=minus_one if name.endswith("norm.weight") else None)


def minus_one(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 + w to w in float32: exact for 1 + w of at least 0.5, else rounded once."""
    return values - np.float32(1)


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, ffn, head_dim = (
        config[name] for name in ("hidden_size", "intermediate_size", "head_dim")
    )
    query = config["num_attention_heads"] * head_dim
    kv = config["num_key_value_heads"] * head_dim
    block: Mapping[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.q_norm.weight": (head_dim,),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.k_norm.weight": (head_dim,),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "post_attention_layernorm.weight": (hidden,),
        "pre_feedforward_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
        "post_feedforward_layernorm.weight": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return shapes

"""Converts a GGUF file of the Llama family into HF files: converter ``gguf-llama/1``.

GGUF stores the rows of each query and key head in pairs (0, D/2, 1, D/2 + 1, ...); here they
return to HF's order. Shape legend: D head_dim, rows = output features.
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
    require_architecture,
    shortest,
)
from harness.checkpoint.gguf_tokenizer import tokenizer_document
from harness.errors import CheckpointError

CONVERTER = "gguf-llama/1"
_BLOCK_NAMES: Mapping[str, str] = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_GLOBAL_NAMES: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def convert(source: Path, folder: Path, *, dtype: str, progress: Progress | None = None) -> None:
    """Convert a file as :func:`~harness.checkpoint.gguf_convert.convert_file` says."""
    recipe = Recipe(config=_config, tokenizer=tokenizer_document, wanted=_wanted)
    convert_file(recipe, source, folder, dtype=dtype, progress=progress)


def _config(file: GgufFile, dtype: str) -> dict[str, Any]:
    fields = file.fields
    require_architecture(fields, "llama", "Llama")
    if scaling := sorted(name for name in fields if name.startswith("llama.rope.scaling")):
        raise CheckpointError("RoPE scaling in GGUF is not converted", got=", ".join(scaling))
    hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "head_dim": fields.get("llama.rope.dimension_count", hidden // heads),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "rms_norm_eps": shortest(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": shortest(fields.get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": file.is_tied,
        "torch_dtype": dtype,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
    }


def _wanted(config: Mapping[str, Any]) -> Wanted:
    def change(name: str) -> Change:
        if name.endswith("attn_q.weight"):
            return _head_rows(config, config["num_attention_heads"])
        if name.endswith("attn_k.weight"):
            return _head_rows(config, config["num_key_value_heads"])
        return Change()

    return Wanted(model="Llama", shapes=_shapes(config), key=_key, change=change)


def _key(name: str) -> str | None:
    return _GLOBAL_NAMES.get(name) or block_key(name, _BLOCK_NAMES)


def _head_rows(config: Mapping[str, Any], num_heads: int) -> Change:
    return Change(row_order=lambda: head_row_order(num_heads * config["head_dim"], num_heads))


def head_row_order(num_rows: int, num_heads: int) -> NDArray[np.int64]:
    """GGUF row of each HF row: HF row (head, half, i) lies at GGUF row (head, i, half)."""
    gguf_rows = np.arange(num_rows).reshape(num_heads, num_rows // num_heads // 2, 2)
    return gguf_rows.swapaxes(1, 2).reshape(num_rows)


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, vocab, ffn = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    block: Mapping[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return shapes

"""A GGUF file of the Llama family from a safetensors checkpoint: the same weights for llama.cpp.

The inverse of ``harness.checkpoint.gguf_llama``: the same names and the same order of head rows.
Matrices keep the dtype that is asked for, bit for bit; norms are float32, as llama.cpp wants them.
Without a vocabulary, as token ids are all that is exchanged.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from harness.checkpoint.gguf_llama import head_row_order

_TYPES = {
    "bfloat16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "float32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}
_NORMS = ("norm.weight", "layernorm.weight")


def write_gguf(checkpoint: Path, path: Path, dtype: str) -> None:
    """Write ``path`` from the safetensors file and ``config.json`` under ``checkpoint``."""
    config = json.loads((checkpoint / "config.json").read_text())
    kind, file_type = _TYPES[dtype]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(file_type)
    _add_config(writer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for key, tensor in load_file(checkpoint / "model.safetensors").items():
        name = names.get_name(key, try_suffixes=(".weight",))
        if name is None:
            raise ValueError(f"GGUF has no name for {key}")
        if key.endswith(_NORMS):
            writer.add_tensor(name, tensor.float().numpy())
            continue
        rows = _ordered(key, tensor.to(getattr(torch, dtype)), config)
        raw = rows.contiguous().view(torch.uint8).numpy()
        writer.add_tensor(name, raw, raw_shape=raw.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _ordered(key: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    for part, count in heads.items():
        if part in key:
            order = head_row_order(tensor.shape[0], config[count])
            # Row i of HF is row order[i] of GGUF.
            return tensor[torch.from_numpy(np.argsort(order))]
    return tensor


def _add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")

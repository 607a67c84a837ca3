"""The GGUF file holds the checkpoint's own weights, named and ordered as llama.cpp wants them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from benchmarks.gguf_file import write_gguf
from harness.adapters.llama.layout import LlamaLayout
from harness.checkpoint.gguf_file import open_gguf

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_weights_are_the_checkpoints(tmp_path: Path, dtype: str) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        key: torch.randn(tensor.shape, generator=generator).bfloat16()
        for key, tensor in LlamaLayout().synthetic_tensors(CONFIG).items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_gguf(tmp_path, tmp_path / "model.gguf", dtype)
    file = open_gguf(tmp_path / "model.gguf")
    assert file.fields["llama.attention.head_count_kv"] == 1
    assert file.fields["llama.rope.freq_base"] == 10_000.0
    found = {tensor.name: tensor for tensor in file.tensors}
    assert len(found) == len(tensors)

    def values(name: str) -> torch.Tensor:
        tensor = found[name]
        shape = [int(size) for size in tensor.shape[::-1]]
        kind = torch.float32 if tensor.tensor_type.name == "F32" else torch.bfloat16
        raw = torch.from_numpy(np.array(tensor.data).view(np.uint8).reshape(-1).copy())
        return raw.view(kind).view(shape).float()

    for name, key in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
        ("blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight"),
    ):
        assert torch.equal(values(name), tensors[key].float()), name
    wide = "F32" if dtype == "float32" else "BF16"
    assert found["blk.0.attn_q.weight"].tensor_type.name == wide
    assert found["blk.0.attn_norm.weight"].tensor_type.name == "F32"
    # The two halves of each head, a row of one after a row of the other.
    query = tensors["model.layers.0.self_attn.q_proj.weight"].float().view(2, 2, 8, 32)
    expected = query.transpose(1, 2).reshape(32, 32)
    assert torch.equal(values("blk.0.attn_q.weight"), expected)

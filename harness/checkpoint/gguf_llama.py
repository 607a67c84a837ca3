"""Converts a GGUF file of the Llama family into HF files: converter ``gguf-llama/1``.

Weights are dequantized in float32 and rounded to bfloat16 (or kept in float32), a block of rows at
a time. GGUF stores the rows of each query and key head in pairs (0, D/2, 1, D/2 + 1, ...); here
they return to HF's order. The bytes follow from the GGUF alone: every step is one correctly
rounded operation. Shape legend: D head_dim, rows = output features.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from harness.checkpoint.bfloat16 import to_bfloat16
from harness.checkpoint.cache import write_json
from harness.checkpoint.gguf_tokenizer import tokenizer_config, tokenizer_document
from harness.checkpoint.writer import TensorToWrite, write_safetensors
from harness.errors import CheckpointError

CONVERTER = "gguf-llama/1"
DTYPES = ("bfloat16", "float32")
_BLOCK_ELEMENTS = 1 << 20
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
_QUANT_TYPES = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}
"""Whose dequantization is elementwise, so that it gives the same bits everywhere."""


def convert(
    source: Path,
    folder: Path,
    *,
    dtype: str,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write ``model.safetensors``, ``config.json`` and the tokenizer's files into ``folder``.

    Args:
        source: The GGUF file, verified against its pinned digest.
        folder: An empty folder.
        dtype: ``bfloat16`` or ``float32``.
        progress: Told the fraction of bytes written.

    Raises:
        CheckpointError: When the file is not GGUF of a plain Llama model.
    """
    where = source.name
    try:
        reader = gguf.GGUFReader(source)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise CheckpointError(
            "not a readable GGUF file", got=str(error)[:200], where=where
        ) from error
    try:
        config = _config(fields, tied=_is_tied(reader), dtype=dtype)
        tokenizer = tokenizer_document(fields, where=where)
        companions = tokenizer_config(fields)
    except (KeyError, IndexError, TypeError) as error:
        raise CheckpointError(
            "GGUF metadata is incomplete", got=repr(error), where=where
        ) from error
    tensors = _tensors(reader, config, dtype, where)
    write_safetensors(folder / "model.safetensors", tensors, progress=progress)
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json", companions)


def _is_tied(reader: gguf.GGUFReader) -> bool:
    return all(tensor.name != "output.weight" for tensor in reader.tensors)


def _config(fields: Mapping[str, Any], *, tied: bool, dtype: str) -> dict[str, Any]:
    if fields["general.architecture"] != "llama":
        raise CheckpointError(
            "this GGUF file is not a Llama model",
            expected="general.architecture llama",
            got=str(fields["general.architecture"])[:80],
        )
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
        "rms_norm_eps": _shortest(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(fields.get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": tied,
        "torch_dtype": dtype,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
    }


def _shortest(value: float) -> float:
    # GGUF holds float32: 1e-5 comes back as 9.999999747378752e-06 unless it is spelled shortest.
    return float(str(np.float32(value)))


def _hf_name(name: str) -> str | None:
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in _BLOCK_NAMES:
        return f"model.layers.{parts[1]}.{_BLOCK_NAMES[parts[2]]}"
    return None


def _tensors(
    reader: gguf.GGUFReader, config: Mapping[str, Any], dtype: str, where: str
) -> dict[str, TensorToWrite]:
    tensors: dict[str, TensorToWrite] = {}
    problems = []
    for tensor in reader.tensors:
        key = _hf_name(tensor.name)
        if key is None:
            problems.append(f"tensor {tensor.name} is not known")
        elif tensor.tensor_type.name not in _QUANT_TYPES:
            problems.append(f"tensor {tensor.name} is {tensor.tensor_type.name}")
        else:
            tensors[key] = _tensor(tensor, config, dtype)
    expected = _expected_shapes(config)
    for key in sorted(expected.keys() | tensors.keys()):
        if key not in tensors:
            problems.append(f"tensor {key} is missing")
        elif key not in expected:
            problems.append(f"tensor {key} is unexpected")
        elif tensors[key].shape != expected[key]:
            problems.append(f"tensor {key} is {tensors[key].shape}, not {expected[key]}")
    if problems:
        raise CheckpointError(
            "this GGUF file is not a plain Llama model", got="; ".join(problems[:20]), where=where
        )
    return tensors


def _expected_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
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


def _tensor(
    tensor: gguf.gguf_reader.ReaderTensor, config: Mapping[str, Any], dtype: str
) -> TensorToWrite:
    # GGUF lists dimensions fastest first.
    shape = tuple(int(size) for size in reversed(tensor.shape.tolist()))
    num_heads = None
    if tensor.name.endswith("attn_q.weight"):
        num_heads = config["num_attention_heads"]
    elif tensor.name.endswith("attn_k.weight"):
        num_heads = config["num_key_value_heads"]

    def pieces() -> Iterator[bytes]:
        order = None if num_heads is None else head_row_order(shape[0], num_heads)
        return _pieces(tensor, shape, order, dtype)

    return TensorToWrite(dtype=dtype, shape=shape, pieces=pieces)


def head_row_order(num_rows: int, num_heads: int) -> NDArray[np.int64]:
    """GGUF row of each HF row: HF row (head, half, i) lies at GGUF row (head, i, half)."""
    gguf_rows = np.arange(num_rows).reshape(num_heads, num_rows // num_heads // 2, 2)
    return gguf_rows.swapaxes(1, 2).reshape(num_rows)


def _pieces(
    tensor: gguf.gguf_reader.ReaderTensor,
    shape: tuple[int, ...],
    order: NDArray[np.int64] | None,
    dtype: str,
) -> Iterator[bytes]:
    rows = tensor.data if len(shape) > 1 else tensor.data.reshape(1, -1)
    columns = shape[-1]
    step = max(_BLOCK_ELEMENTS // max(columns, 1), 1)
    for begin in range(0, math.prod(shape) // max(columns, 1), step):
        # Rows are quantized one by one, so reordering them first is exact and needs no whole copy.
        block = rows[begin : begin + step] if order is None else rows[order[begin : begin + step]]
        values = gguf.dequantize(block, tensor.tensor_type)
        if dtype == "bfloat16":
            yield to_bfloat16(values).tobytes()
        else:
            yield values.astype("<f4").tobytes()

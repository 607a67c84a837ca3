"""Builders of checkpoint files, independent of the code under test."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WriteRaw = Callable[..., Path]
WriteTensors = Callable[..., dict[str, bytes]]


@pytest.fixture
def write_raw(tmp_path: Path) -> WriteRaw:
    """Writes a file from a header (text or object) and data bytes; the length can be forged."""

    def write(
        header: Any,
        data: bytes = b"",
        *,
        name: str = "model.safetensors",
        length: int | None = None,
    ) -> Path:
        text = header if isinstance(header, str) else json.dumps(header)
        raw = text.encode("utf-8", "surrogatepass")
        path = tmp_path / name
        path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
        return path

    return write


@pytest.fixture
def write_tensors(tmp_path: Path) -> WriteTensors:
    """Writes U8 tensors of given sizes into a file; returns their bytes by key."""

    def write(sizes: dict[str, int], *, name: str = "model.safetensors") -> dict[str, bytes]:
        header, contents, offset = {}, {}, 0
        for key, size in sizes.items():
            contents[key] = hashlib.shake_128(f"{name} {key}".encode()).digest(size)
            header[key] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
            offset += size
        raw = json.dumps(header).encode()
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"".join(contents.values()))
        return contents

    return write


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Writes a tiny Llama GGUF file; returns its float32 weights in HF's names and row order."""
    gguf = pytest.importorskip("gguf")
    np = pytest.importorskip("numpy")

    def permuted(rows: Any, num_heads: int) -> Any:
        # llama.cpp's rule, spelled out: within a head, halves become neighbours.
        half = len(rows) // num_heads // 2
        order = [
            (head * 2 + part) * half + index
            for head in range(num_heads)
            for index in range(half)
            for part in range(2)
        ]
        return rows[order]

    def write(
        path: Path,
        *,
        quantization: str = "F32",
        tied: bool = True,
        scalars: dict[str, Any] | None = None,
        drop: tuple[str, ...] = (),
        extra: tuple[str, ...] = (),
        types: dict[int, int] | None = None,
        rope_dimensions: int = 16,
    ) -> dict[str, Any]:
        hidden, heads, kv_heads, ffn, layers = 64, 4, 2, 96, 2
        alphabet = sorted(bytes_to_unicode().values())
        specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        tokens = [*specials, *alphabet, "he", "ll", "hell", "hello", "Ġt", "12"]
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_block_count(layers)
        writer.add_context_length(128)
        writer.add_embedding_length(hidden)
        writer.add_feed_forward_length(ffn)
        writer.add_head_count(heads)
        writer.add_head_count_kv(kv_heads)
        writer.add_rope_freq_base(100000.0)
        writer.add_rope_dimension_count(rope_dimensions)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(tokens)
        kinds = [3] * len(specials) + [1] * (len(tokens) - len(specials))
        for index, kind in (types or {}).items():
            kinds[index] = kind
        writer.add_token_types(kinds)
        writer.add_token_merges(["h e", "l l", "he ll", "hell o", "Ġ t", "1 2"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        for name, value in (scalars or {}).items():
            writer.add_string(name, value)
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            "model.embed_tokens.weight": ("token_embd.weight", (len(tokens), hidden)),
            "model.norm.weight": ("output_norm.weight", (hidden,)),
        }
        if not tied:
            shapes["lm_head.weight"] = ("output.weight", (len(tokens), hidden))
        for i in range(layers):
            hf, gg = f"model.layers.{i}.", f"blk.{i}."
            kv = kv_heads * hidden // heads
            for ours, theirs, shape in (
                ("input_layernorm", "attn_norm", (hidden,)),
                ("post_attention_layernorm", "ffn_norm", (hidden,)),
                ("self_attn.q_proj", "attn_q", (hidden, hidden)),
                ("self_attn.k_proj", "attn_k", (kv, hidden)),
                ("self_attn.v_proj", "attn_v", (kv, hidden)),
                ("self_attn.o_proj", "attn_output", (hidden, hidden)),
                ("mlp.gate_proj", "ffn_gate", (ffn, hidden)),
                ("mlp.up_proj", "ffn_up", (ffn, hidden)),
                ("mlp.down_proj", "ffn_down", (hidden, ffn)),
            ):
                shapes[f"{hf}{ours}.weight"] = (f"{gg}{theirs}.weight", shape)
        random = np.random.default_rng(1)
        weights = {}
        for key, (name, shape) in shapes.items():
            weights[key] = random.standard_normal(shape, dtype="float32") / 8
            if len(shape) == 1:
                weights[key] += 1
            stored = weights[key]
            if name.endswith("attn_q.weight"):
                stored = permuted(stored, heads)
            elif name.endswith("attn_k.weight"):
                stored = permuted(stored, kv_heads)
            if name in drop:
                continue
            kind = gguf.GGMLQuantizationType[quantization if len(shape) > 1 else "F32"]
            if kind.name in ("F32", "F16"):
                writer.add_tensor(
                    name, stored.astype("float32" if kind.name == "F32" else "float16")
                )
            else:
                writer.add_tensor(name, gguf.quantize(stored, kind), raw_dtype=kind)
        for name in extra:
            writer.add_tensor(name, np.zeros(8, dtype="float32"))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return weights

    return write


def bytes_to_unicode() -> dict[int, str]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in printable}
    rest = [byte for byte in range(256) if byte not in table]
    return {**table, **{byte: chr(256 + index) for index, byte in enumerate(rest)}}

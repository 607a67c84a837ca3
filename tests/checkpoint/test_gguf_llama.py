import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from harness.checkpoint.gguf_llama import convert, head_row_order
from harness.checkpoint.tokenizer import decode_tokens, encode_prompt
from harness.errors import CheckpointError

WriteGguf = Callable[..., dict[str, Any]]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_float32_comes_back_exactly(tmp_path: Path, out: Path, write_gguf: WriteGguf) -> None:
    weights = write_gguf(tmp_path / "m.gguf")
    fractions: list[float] = []
    convert(tmp_path / "m.gguf", out, dtype="float32", progress=fractions.append)
    converted = safetensors.numpy.load_file(out / "model.safetensors")
    assert converted.keys() == weights.keys()
    for key, array in weights.items():
        assert np.array_equal(converted[key], array), key
    assert fractions[-1] == 1.0


def test_an_untied_head_is_kept(tmp_path: Path, out: Path, write_gguf: WriteGguf) -> None:
    weights = write_gguf(tmp_path / "m.gguf", tied=False)
    convert(tmp_path / "m.gguf", out, dtype="float32")
    converted = safetensors.numpy.load_file(out / "model.safetensors")
    assert np.array_equal(converted["lm_head.weight"], weights["lm_head.weight"])
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False


@pytest.mark.parametrize(("quantization", "bits"), [("Q8_0", 7), ("Q4_1", 3), ("F16", 10)])
def test_quantized_rows_are_close_and_in_order(
    tmp_path: Path, out: Path, write_gguf: WriteGguf, quantization: str, bits: int
) -> None:
    weights = write_gguf(tmp_path / "m.gguf", quantization=quantization)
    convert(tmp_path / "m.gguf", out, dtype="float32")
    converted = safetensors.numpy.load_file(out / "model.safetensors")
    for key, array in weights.items():
        # One step of the widest block, which spans all of a row's values.
        step = 2 * np.abs(array).max() / 2**bits
        assert np.abs(converted[key] - array).max() <= step, key


def test_bfloat16_is_float32_rounded(tmp_path: Path, out: Path, write_gguf: WriteGguf) -> None:
    torch = pytest.importorskip("torch")
    weights = write_gguf(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", out, dtype="bfloat16")
    with safetensors.safe_open(out / "model.safetensors", "pt") as file:
        for key, array in weights.items():
            assert torch.equal(file.get_tensor(key), torch.from_numpy(array).bfloat16()), key


def test_companion_files(tmp_path: Path, out: Path, write_gguf: WriteGguf) -> None:
    write_gguf(tmp_path / "m.gguf", scalars={"tokenizer.chat_template": "{{ 1 }}"})
    convert(tmp_path / "m.gguf", out, dtype="bfloat16")
    assert json.loads((out / "config.json").read_text()) == {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 265,
    }
    assert json.loads((out / "tokenizer_config.json").read_text()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 128,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "chat_template": "{{ 1 }}",
    }
    # hello is one merged token; digits are split; special tokens are found in the text.
    ids = encode_prompt(out, "hello t12<|im_end|>é", chat=False)
    tokens = json.loads((out / "tokenizer.json").read_text())["model"]["vocab"]
    names = {index: token for token, index in tokens.items()}
    assert [names[index] for index in ids] == ["hello", "Ġt", "1", "2", "<|im_end|>", "Ã", "©"]
    assert decode_tokens(out, ids) == "hello t12é"


def test_the_same_bytes_every_time(tmp_path: Path, out: Path, write_gguf: WriteGguf) -> None:
    write_gguf(tmp_path / "m.gguf", quantization="Q4_1")
    again = tmp_path / "again"
    again.mkdir()
    convert(tmp_path / "m.gguf", out, dtype="bfloat16")
    convert(tmp_path / "m.gguf", again, dtype="bfloat16")
    for path in out.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_block_size_does_not_change_bytes(
    tmp_path: Path, out: Path, write_gguf: WriteGguf, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "m.gguf", quantization="Q4_1")
    convert(tmp_path / "m.gguf", out, dtype="bfloat16")
    whole = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    monkeypatch.setattr("harness.checkpoint.gguf_file._BLOCK_ELEMENTS", 300)
    again = tmp_path / "again"
    again.mkdir()
    convert(tmp_path / "m.gguf", again, dtype="bfloat16")
    assert hashlib.sha256((again / "model.safetensors").read_bytes()).hexdigest() == whole


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"extra": ("blk.0.attn_q.bias",)}, ["blk.0.attn_q.bias is not known"]),
        ({"extra": ("rope_freqs.weight",)}, ["rope_freqs.weight is not known"]),
        ({"extra": ("blk.2.attn_norm.weight",)}, ["model.layers.2.input_layernorm.weight is un"]),
        (
            {"drop": ("output_norm.weight", "blk.1.attn_k.weight")},
            ["model.norm.weight is missing", "model.layers.1.self_attn.k_proj.weight is missing"],
        ),
        ({"quantization": "MXFP4"}, ["token_embd.weight is MXFP4"]),
        ({"rope_dimensions": 15}, ["q_proj.weight is (64, 64), not (60, 64)"]),
        ({"scalars": {"llama.rope.scaling.type": "yarn"}}, ["llama.rope.scaling.type"]),
        ({"types": {5: 6}}, ["token types [6]"]),
    ],
)
def test_other_models_are_refused(
    tmp_path: Path, out: Path, write_gguf: WriteGguf, options: Any, parts: list[str]
) -> None:
    write_gguf(tmp_path / "m.gguf", **options)
    with pytest.raises(CheckpointError) as caught:
        convert(tmp_path / "m.gguf", out, dtype="bfloat16")
    for part in parts:
        assert part in str(caught.value)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"GGUF", b"x" * 100, b"GGUF\x03\0\0\0" + b"\xff" * 40])
def test_what_is_no_gguf_file(tmp_path: Path, out: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(CheckpointError):
        convert(tmp_path / "m.gguf", out, dtype="bfloat16")


def test_a_truncated_file(tmp_path: Path, out: Path, write_gguf: WriteGguf) -> None:
    write_gguf(tmp_path / "m.gguf")
    data = (tmp_path / "m.gguf").read_bytes()
    for size in (len(data) - 1000, len(data) // 2, 5000, 100, 20):
        (tmp_path / "m.gguf").write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            convert(tmp_path / "m.gguf", out, dtype="bfloat16")


def test_row_order_of_one_head() -> None:
    assert head_row_order(8, 1).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert head_row_order(8, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_one_block_of_rows_at_a_time(
    tmp_path: Path, out: Path, write_gguf: WriteGguf, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "m.gguf")
    import gguf

    whole = gguf.dequantize
    largest = 0

    def dequantize(data: Any, kind: Any) -> Any:
        nonlocal largest
        largest = max(largest, data.size)
        return whole(data, kind)

    monkeypatch.setattr(gguf, "dequantize", dequantize)
    monkeypatch.setattr("harness.checkpoint.gguf_file._BLOCK_ELEMENTS", 640)
    convert(tmp_path / "m.gguf", out, dtype="bfloat16")
    assert largest == 640

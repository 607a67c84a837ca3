import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from harness.checkpoint.gguf_gemma import convert
from harness.checkpoint.gguf_spm_tokenizer import tokenizer_document
from harness.checkpoint.tokenizer import decode_tokens, encode_prompt
from harness.errors import CheckpointError

WriteGemma = Callable[..., dict[str, Any]]
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>"]
USER = ["\n", "\n\n", "  ", "    ", "<table>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
NORMAL = ["▁a", "ab", "he", "▁b", "ca", "aa", "▁ab", "he▁", "bc", "aaaa", "cab", "abc", "\n▁"]
NORMAL += ["▁", "a", "b", "c", "h", "e", "\u00e9"]
TOKENS = [*CONTROL, *USER, *BYTES, *NORMAL]
KINDS = [3] * len(CONTROL) + [4] * len(USER) + [6] * len(BYTES) + [1] * len(NORMAL)
SCORES = [-1000.0] * (len(TOKENS) - len(NORMAL)) + [-float(rank) for rank in range(len(NORMAL))]
HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 2, 1, 32, 96, 7
METADATA: dict[str, Any] = {
    "gemma3.block_count": LAYERS,
    "gemma3.context_length": 128,
    "gemma3.embedding_length": 64,
    "gemma3.feed_forward_length": FFN,
    "gemma3.attention.head_count": HEADS,
    "gemma3.attention.head_count_kv": KV_HEADS,
    "gemma3.attention.key_length": HEAD_DIM,
    "gemma3.attention.value_length": HEAD_DIM,
    "gemma3.attention.sliding_window": 8,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.rope.freq_base": 1e6,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": KINDS,
    "tokenizer.ggml.scores": SCORES,
    "tokenizer.ggml.bos_token_id": 2,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.unknown_token_id": 3,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.add_eos_token": False,
    "tokenizer.ggml.add_sep_token": False,
    "tokenizer.ggml.add_space_prefix": False,
}
BLOCK = {
    "attn_norm": ("input_layernorm", "hidden"),
    "attn_q": ("self_attn.q_proj", (HEADS * HEAD_DIM, "hidden")),
    "attn_q_norm": ("self_attn.q_norm", HEAD_DIM),
    "attn_k": ("self_attn.k_proj", (KV_HEADS * HEAD_DIM, "hidden")),
    "attn_k_norm": ("self_attn.k_norm", HEAD_DIM),
    "attn_v": ("self_attn.v_proj", (KV_HEADS * HEAD_DIM, "hidden")),
    "attn_output": ("self_attn.o_proj", ("hidden", HEADS * HEAD_DIM)),
    "post_attention_norm": ("post_attention_layernorm", "hidden"),
    "ffn_norm": ("pre_feedforward_layernorm", "hidden"),
    "ffn_gate": ("mlp.gate_proj", (FFN, "hidden")),
    "ffn_up": ("mlp.up_proj", (FFN, "hidden")),
    "ffn_down": ("mlp.down_proj", ("hidden", FFN)),
    "post_ffw_norm": ("post_feedforward_layernorm", "hidden"),
}


def tensor_names(hidden: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """HF key -> GGUF name and shape."""

    def shape(spec: Any) -> tuple[int, ...]:
        sizes = spec if isinstance(spec, tuple) else (spec,)
        return tuple(hidden if size == "hidden" else size for size in sizes)

    names = {
        "model.embed_tokens.weight": ("token_embd.weight", (len(TOKENS), hidden)),
        "model.norm.weight": ("output_norm.weight", (hidden,)),
    }
    for layer in range(LAYERS):
        for theirs, (ours, spec) in BLOCK.items():
            key = f"model.layers.{layer}.{ours}.weight"
            names[key] = (f"blk.{layer}.{theirs}.weight", shape(spec))
    return names


def bfloat16_values(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Float32 values that bfloat16 holds, 2**-16 to 2**5 in size: 1 + w is exact in float32."""
    size = np.exp2(random.uniform(-16, 5, shape)) * random.choice([-1.0, 1.0], shape)
    bits = size.astype("float32").view("uint32") & np.uint32(0xFFFF0000)
    return bits.view("float32")


def add_metadata(writer: gguf.GGUFWriter, metadata: dict[str, Any]) -> None:
    for name, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)


@pytest.fixture
def write_gemma() -> WriteGemma:
    """Writes a tiny Gemma 3 GGUF file; returns the weights that a conversion must give."""

    def write(
        path: Path,
        *,
        metadata: dict[str, Any] | None = None,
        raw: dict[str, tuple[str, Any]] | None = None,
        drop: tuple[str, ...] = (),
        extra: tuple[str, ...] = (),
        hidden: int = 64,
        architecture: str = "gemma3",
    ) -> dict[str, Any]:
        writer = gguf.GGUFWriter(path, architecture)
        changed = {**METADATA, "gemma3.embedding_length": hidden, **(metadata or {})}
        add_metadata(writer, {name: value for name, value in changed.items() if value is not None})
        random = np.random.default_rng(1)
        weights = {}
        for key, (name, shape) in tensor_names(hidden).items():
            is_norm = len(shape) == 1
            weights[key] = bfloat16_values(random, shape)
            if name in drop:
                continue
            if name in (raw or {}):
                kind, data = (raw or {})[name]
                writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
            else:
                writer.add_tensor(name, weights[key] + np.float32(1 if is_norm else 0))
        for name in extra:
            writer.add_tensor(name, np.zeros(8, dtype="float32"))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return weights

    return write


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def as_bfloat16(values: Any) -> Any:
    """Bit patterns of values that bfloat16 holds exactly."""
    bits = values.view("uint32")
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype("uint16")


def read_patterns(path: Path) -> dict[str, Any]:
    """Bit patterns of a bfloat16 file, which numpy has no type for."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    found = {}
    for key, entry in header.items():
        if key != "__metadata__":
            assert entry["dtype"] == "BF16"
            begin, end = entry["data_offsets"]
            found[key] = np.frombuffer(body[begin:end], "<u2").reshape(entry["shape"])
    return found


def test_every_bit_of_the_original_comes_back(
    tmp_path: Path, out: Path, write_gemma: WriteGemma
) -> None:
    weights = write_gemma(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", out, dtype="bfloat16")
    converted = read_patterns(out / "model.safetensors")
    assert converted.keys() == weights.keys()
    for key, array in weights.items():
        assert np.array_equal(converted[key], as_bfloat16(array)), key
    # The values would show a conversion that rounds 1 + w to bfloat16 and subtracts afterwards.
    folded = weights["model.norm.weight"] + np.float32(1)
    rounded = (folded.view("uint32") + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
    late = rounded.view("float32") - np.float32(1)
    assert (late != weights["model.norm.weight"]).mean() > 0.5


def test_float32_keeps_all_of_w(tmp_path: Path, out: Path, write_gemma: WriteGemma) -> None:
    weights = write_gemma(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", out, dtype="float32")
    converted = safetensors.numpy.load_file(out / "model.safetensors")
    for key, array in weights.items():
        assert np.array_equal(converted[key], array), key


def q4_k(block: bytes) -> list[float]:
    """One Q4_K block by its definition: 8 groups of 32 with a scale and a minimum of 6 bits."""
    d, d_min = np.frombuffer(block[:4], "<f2").astype(float)
    packed, quants = block[4:16], block[16:]
    values = []
    for group in range(8):
        if group < 4:
            scale, low = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
            low = packed[group + 4] >> 4 | packed[group] >> 6 << 4
        for index in range(32):
            byte = quants[group // 2 * 32 + index]
            values.append(d * scale * (byte >> 4 if group % 2 else byte & 15) - d_min * low)
    return values


def q6_k(block: bytes) -> list[float]:
    """One Q6_K block by its definition: 16 groups of 16 with a signed 8-bit scale."""
    low, high, scales = block[:128], block[128:192], np.frombuffer(block[192:208], "i1")
    d = float(np.frombuffer(block[208:], "<f2")[0])
    values = []
    for index in range(256):
        half, place = divmod(index, 128)
        byte = low[half * 64 + place % 64]
        code = (byte & 15 if place < 64 else byte >> 4) | (
            high[half * 32 + place % 32] >> 2 * (place // 32) & 3
        ) << 4
        values.append(d * int(scales[index // 16]) * (code - 32))
    return values


@pytest.mark.parametrize(
    ("kind", "num_bytes", "decode"), [("Q4_K", 144, q4_k), ("Q6_K", 210, q6_k)]
)
def test_mixed_quantizations(
    tmp_path: Path,
    out: Path,
    write_gemma: WriteGemma,
    kind: str,
    num_bytes: int,
    decode: Callable[[bytes], list[float]],
) -> None:
    random = np.random.default_rng(2)
    blocks = random.integers(0, 256, (FFN, num_bytes), dtype="uint8")
    scales = random.uniform(0.001, 0.1, (FFN, 2)).astype("<f2").view("uint8")
    # The two float16 scales (or the one) must not be NaN.
    if kind == "Q4_K":
        blocks[:, :4] = scales
    else:
        blocks[:, -2:] = scales[:, :2]
    write_gemma(tmp_path / "m.gguf", raw={"blk.0.ffn_up.weight": (kind, blocks)}, hidden=256)
    convert(tmp_path / "m.gguf", out, dtype="float32")
    up = safetensors.numpy.load_file(out / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    expected = np.array([decode(row.tobytes()) for row in blocks])
    assert up.shape == (FFN, 256)
    assert np.abs(up - expected).max() <= 2e-6 * np.abs(expected).max()


def test_companion_files(tmp_path: Path, out: Path, write_gemma: WriteGemma) -> None:
    write_gemma(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", out, dtype="bfloat16")
    assert json.loads((out / "config.json").read_text()) == {
        "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "final_logit_softcapping": None,
        "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 64,
        "intermediate_size": 96,
        "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
        "max_position_embeddings": 128,
        "model_type": "gemma3_text",
        "num_attention_heads": 2,
        "num_hidden_layers": 7,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 32,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 8,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_bidirectional_attention": False,
        "vocab_size": len(TOKENS),
    }
    assert json.loads((out / "tokenizer_config.json").read_text()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 128,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    }


def test_the_same_bytes_every_time(tmp_path: Path, out: Path, write_gemma: WriteGemma) -> None:
    write_gemma(tmp_path / "m.gguf")
    again = tmp_path / "again"
    again.mkdir()
    convert(tmp_path / "m.gguf", out, dtype="bfloat16")
    convert(tmp_path / "m.gguf", again, dtype="bfloat16")
    for path in out.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"architecture": "gemma2"}, ["not a Gemma 3 model", "gemma2"]),
        (
            {"metadata": {"gemma3.rope.scaling.factor": 8.0, "gemma3.other": 1}},
            ["gemma3.other is not converted", "gemma3.rope.scaling.factor is not converted"],
        ),
        (
            {"metadata": {"gemma3.attention.value_length": 16}},
            ["key length 32 is not value length"],
        ),
        ({"metadata": {"gemma3.block_count": 62}}, ["the attention scale of 27B"]),
        ({"metadata": {"gemma3.block_count": 0}}, ["block_count is not a size", "0"]),
        ({"metadata": {"gemma3.context_length": 2**30}}, ["context_length is not a size"]),
        ({"metadata": {"gemma3.attention.head_count": None}}, ["incomplete", "head_count"]),
        ({"metadata": {"gemma3.block_count": 8}}, ["layers.7.input_layernorm.weight is missing"]),
        ({"extra": ("output.weight",)}, ["tensor output.weight is not known"]),
        ({"extra": ("blk.0.attn_q.bias",)}, ["blk.0.attn_q.bias is not known"]),
        ({"drop": ("blk.3.attn_q_norm.weight",)}, ["layers.3.self_attn.q_norm.weight is missing"]),
        ({"metadata": {"tokenizer.ggml.model": "gpt2"}}, ["tokenizer is not converted", "gpt2"]),
        ({"metadata": {"tokenizer.ggml.add_space_prefix": True}}, ["add_space_prefix is set"]),
        ({"metadata": {"tokenizer.ggml.scores": SCORES[1:]}}, ["do not fit together"]),
        ({"metadata": {"tokenizer.ggml.scores": [0.0] * len(TOKENS)}}, ["no one order"]),
        (
            {
                "metadata": {
                    "tokenizer.ggml.scores": [*SCORES[: -len(NORMAL)], *[float("nan")] * 20]
                }
            },
            ["no one order"],
        ),
        (
            {"metadata": {"tokenizer.ggml.token_type": [*KINDS[:-1], 5]}},
            ["token types [5] are not converted"],
        ),
        (
            {"metadata": {"tokenizer.ggml.tokens": [*TOKENS[:-1], "<0x00>"]}},
            ["a token is there twice"],
        ),
        (
            {"metadata": {"tokenizer.ggml.token_type": [*KINDS[:9], 1, *KINDS[10:]]}},
            ["the byte tokens are not <0x00> to <0xFF>"],
        ),
    ],
)
def test_other_models_are_refused(
    tmp_path: Path, out: Path, write_gemma: WriteGemma, options: Any, parts: list[str]
) -> None:
    write_gemma(tmp_path / "m.gguf", **options)
    with pytest.raises(CheckpointError) as caught:
        convert(tmp_path / "m.gguf", out, dtype="bfloat16")
    for part in parts:
        assert part in str(caught.value)
    assert list(out.iterdir()) == []


def spm_encode(text: str) -> list[int]:
    """SentencePiece's own rule: the neighbours whose union scores best are joined, leftmost first.

    A user's token stands wherever it is found, the longest first, and joins nothing.
    """
    index = {token.replace(" ", "▁"): place for place, token in enumerate(TOKENS)}
    scores = dict(zip(NORMAL, SCORES[-len(NORMAL) :], strict=True))
    user = sorted((token.replace(" ", "▁") for token in USER), key=len, reverse=True)
    rest, pieces = text.replace(" ", "▁"), []
    while rest:
        found = next((token for token in user if rest.startswith(token)), None)
        pieces.append((found or rest[0], found is not None))
        rest = rest[len(found or rest[0]) :]
    while True:
        joins = [
            (-scores[left + right], place)
            for place, ((left, fixed), (right, also)) in enumerate(pairwise(pieces))
            if not fixed and not also and left + right in scores
        ]
        if not joins:
            break
        _, place = min(joins)
        joined = pieces[place][0] + pieces[place + 1][0]
        pieces[place : place + 2] = [(joined, False)]
    ids: list[int] = []
    for piece, _ in pieces:
        known = piece in index
        ids += [index[piece]] if known else [index[f"<0x{b:02X}>"] for b in piece.encode()]
    return ids


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_document(METADATA, "here")))


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.sampled_from([*"aabbcche ", "\n", " ", "é", "ж", "😀", "▁", "<table>", "\t"]),
        max_size=40,
    ).map("".join)
)
def test_text_is_split_as_sentencepiece_splits_it(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == spm_encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text.replace("▁", " ")


def test_ids_and_text(tmp_path: Path, out: Path, write_gemma: WriteGemma) -> None:
    write_gemma(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", out, dtype="bfloat16")
    place = {token: index for index, token in enumerate(TOKENS)}
    ids = encode_prompt(out, "he ab     a\n\n\n<eos>ж", chat=False)
    expected = ["<bos>", "he", "▁ab", "    ", "▁a", "\n\n", "\n", "<eos>", "<0xD0>", "<0xB6>"]
    assert ids == [place[token] for token in expected]
    assert decode_tokens(out, ids) == "he ab     a\n\n\nж"
    with pytest.raises(CheckpointError, match="no chat template"):
        encode_prompt(out, "he", chat=True)


@pytest.mark.slow
def test_an_independent_conversion_agrees(
    tmp_path: Path, out: Path, write_gemma: WriteGemma
) -> None:
    """transformers reads GGUF by its own code: weights and configuration must be the same."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    loader = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    write_gemma(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", out, dtype="bfloat16")
    model, report = transformers.Gemma3ForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(report.values())
    theirs = loader.load_gguf_checkpoint(
        str(tmp_path / "m.gguf"), return_tensors=True, model_to_load=model
    )
    ours = dict(model.named_parameters())
    assert ours.keys() == theirs["tensors"].keys()
    for key, tensor in theirs["tensors"].items():
        assert torch.equal(torch.as_tensor(tensor).bfloat16(), ours[key]), key
    config = model.config
    assert config.layer_types == [*["sliding_attention"] * 5, "full_attention", "sliding_attention"]
    for name in ("head_dim", "num_key_value_heads", "sliding_window", "hidden_size"):
        assert getattr(config, name) == theirs["config"][name]
    # GGUF leaves these to the reader: they must be what transformers takes for every Gemma 3.
    default = transformers.Gemma3TextConfig(num_hidden_layers=LAYERS)
    for name in ("layer_types", "rope_parameters", "hidden_activation", "tie_word_embeddings"):
        assert getattr(config, name) == getattr(default, name)
    assert config.query_pre_attn_scalar == config.head_dim

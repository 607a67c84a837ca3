import hashlib
import json
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

from harness.checkpoint import synthetic
from harness.checkpoint.synthetic import synthetic_blocks, write_synthetic
from harness.checkpoint.tokenizer import decode_tokens, encode_prompt
from harness.plan.layout import SyntheticTensor

SHAPES = {
    "embed.weight": (40, 64),
    "proj.weight": (64, 100),
    "norm.weight": (64,),
    "proj.bias": (100,),
}
CONFIG = {"vocab_size": 40, "rms_norm_eps": 1e-05}


TENSORS = {key: SyntheticTensor(shape=shape) for key, shape in SHAPES.items()}


def blocks(
    *, seed: int, key: str, shape: tuple[int, ...], dtype: str, **more: Any
) -> Iterator[bytes]:
    """One tensor's bytes, made block by block."""
    generator = more.pop("generator", "shake256/1")
    tensor = SyntheticTensor(shape=shape, **more)
    made = synthetic_blocks(generator, seed=seed, key=key, tensor=tensor, dtype=dtype)
    return (block() for block in made)


def by_the_definition(seed: int, key: str, shape: tuple[int, ...]) -> list[float]:
    """The generator's definition in plain Python, for tensors of one block."""
    count = 1
    for size in shape:
        count *= size
    stream = hashlib.shake_256(f"shake256/1\0{seed}\0{key}\x000\0".encode()).digest(2 * count)
    integers = struct.unpack(f"<{count}h", stream)
    if len(shape) == 1:
        center = 0.0 if key.endswith(".bias") else 1.0
        return [center + v / 2**18 for v in integers]
    k = 0
    while 4 ** (k + 1) <= count // shape[0]:
        k += 1
    return [v / 2**15 * 2 / 2**k for v in integers]


@pytest.mark.parametrize("key", SHAPES)
def test_float32_is_the_definition(key: str) -> None:
    data = b"".join(blocks(seed=7, key=key, shape=SHAPES[key], dtype="float32"))
    assert np.frombuffer(data, "<f4").tolist() == by_the_definition(7, key, SHAPES[key])


@pytest.mark.parametrize("key", SHAPES)
def test_bfloat16_is_the_definition_rounded(key: str) -> None:
    torch = pytest.importorskip("torch")
    data = b"".join(blocks(seed=-3, key=key, shape=SHAPES[key], dtype="bfloat16"))
    expected = torch.tensor(by_the_definition(-3, key, SHAPES[key])).to(torch.bfloat16)
    assert data == bytes(expected.view(torch.uint8).tolist())


def test_files_never_change(tmp_path: Path) -> None:
    write_synthetic(
        tmp_path, seed=7, config=CONFIG, tensors=TENSORS, dtype="bfloat16", num_tokens=40
    )
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()
    }
    assert digests == {
        "model.safetensors": "55027c814f4b4d4da604e0c8a76f5a2e9d754819df1641047ae150da6e60fb57",
        "config.json": "81d257892b5eff7de247f281d6d287915b8692943777cce37d8dbf0b64b1cbe2",
        "tokenizer.json": "899cbfe9c1bd3bc1e1035e7760add04b368e7576158e23758fc30a6e81ab87b1",
    }


def test_files(tmp_path: Path) -> None:
    write_synthetic(
        tmp_path, seed=7, config=CONFIG, tensors=TENSORS, dtype="float32", num_tokens=40
    )
    assert json.loads((tmp_path / "config.json").read_text()) == {
        **CONFIG,
        "torch_dtype": "float32",
    }
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert {key: array.shape for key, array in arrays.items()} == SHAPES
    # Matrices keep activations near their size; norms are near 1.
    assert 0.5 < (arrays["proj.weight"] * np.sqrt(100)).std() < 2.5
    assert np.abs(arrays["norm.weight"] - 1).max() <= 0.125
    assert np.abs(arrays["proj.bias"]).max() <= 0.125
    assert len({array.tobytes()[:64] for array in arrays.values()}) == len(SHAPES)
    assert encode_prompt(tmp_path, "t3 t39 t0", chat=False) == [3, 39, 0]
    assert decode_tokens(tmp_path, [3, 39]) == "t3 t39"


def test_a_named_dtype_is_kept(tmp_path: Path) -> None:
    config = {"vocab_size": 4, "dtype": "float32"}
    write_synthetic(tmp_path, seed=1, config=config, tensors={}, dtype="float32", num_tokens=4)
    assert json.loads((tmp_path / "config.json").read_text()) == config


def test_large_tensors_come_in_blocks() -> None:
    shape = (1025, 4096)
    tracemalloc.start()
    try:
        sizes = [len(piece) for piece in blocks(seed=1, key="a", shape=shape, dtype="bfloat16")]
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert sum(sizes) == 2 * 1025 * 4096
    assert max(sizes) == 2 * synthetic._BLOCK_ELEMENTS
    assert len(sizes) == 5

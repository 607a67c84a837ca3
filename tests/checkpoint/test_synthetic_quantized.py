"""The second generator: bounded numbers, packed codes and e4m3, by its definition."""

import hashlib
import math
import struct
from pathlib import Path

import numpy as np
import pytest

from harness.checkpoint.synthetic import synthetic_blocks, write_synthetic
from harness.plan.layout import SyntheticTensor

QUANTIZED = "shake256-quantized/1"
TENSORS = {
    "codes": SyntheticTensor(shape=(8, 40), dtype="uint8"),
    "scales": SyntheticTensor(shape=(8, 5), dtype="float8_e4m3fn", bounds=(0.5, 1.875)),
    "weights": SyntheticTensor(shape=(16, 64), dtype="float8_e4m3fn", bounds=(-448.0, 448.0)),
    "factor": SyntheticTensor(shape=(), dtype="float32", bounds=(0.25, 0.5)),
    "decay": SyntheticTensor(shape=(32,), bounds=(-3.0, 0.0)),
    "matrix.weight": SyntheticTensor(shape=(4, 64)),
    "norm.weight": SyntheticTensor(shape=(64,)),
}


def made(key: str, *, seed: int = 7, generator: str = QUANTIZED, dtype: str = "bfloat16") -> bytes:
    tensor = TENSORS[key]
    stored = tensor.dtype or dtype
    blocks = synthetic_blocks(generator, seed=seed, key=key, tensor=tensor, dtype=stored)
    return b"".join(block() for block in blocks)


def stream(key: str, num_bytes: int) -> bytes:
    return hashlib.shake_256(f"{QUANTIZED}\x007\0{key}\x000\0".encode()).digest(num_bytes)


def e4m3(bits: int) -> float:
    """The number of one pattern, by the format's definition."""
    exponent, mantissa = bits >> 3 & 0xF, bits & 7
    if bits & 0x7F == 0x7F:
        return math.nan
    size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if bits & 0x80 else size


def test_bytes_are_those_of_the_stream() -> None:
    assert made("codes") == stream("codes", 320)


@pytest.mark.parametrize("key", ["scales", "weights"])
def test_e4m3_patterns_lie_evenly_within_their_bounds(key: str) -> None:
    low, high = TENSORS[key].bounds or (0.0, 0.0)
    negative = [bits for bits in range(0xFE, 0x7F, -1) if low < 0 and e4m3(bits) >= low]
    patterns = negative + [bits for bits in range(0x7F) if low <= e4m3(bits) <= high]
    assert len(patterns) == {"scales": 16, "weights": 254}[key]
    data = made(key)
    expected = [patterns[r * len(patterns) // 256] for r in stream(key, len(data))]
    assert list(data) == expected
    numbers = [e4m3(bits) for bits in data]
    assert all(math.isfinite(number) for number in numbers)
    assert low <= min(numbers)
    assert max(numbers) <= high
    assert key == "weights" or min(numbers) > 0


@pytest.mark.parametrize("key", ["decay", "factor"])
def test_numbers_lie_within_their_bounds(key: str) -> None:
    low, high = TENSORS[key].bounds or (0.0, 0.0)
    data = made(key, dtype="float32")
    integers = struct.unpack(f"<{len(data) // 4}h", stream(key, len(data) // 2))
    expected = [(high + low) / 2 + v / 2**15 * (high - low) / 2 for v in integers]
    assert np.frombuffer(data, "<f4").tolist() == pytest.approx(expected, rel=1e-6)
    assert all(low <= number < high for number in expected)


@pytest.mark.parametrize("key", ["matrix.weight", "norm.weight"])
def test_without_bounds_numbers_are_as_ever(key: str) -> None:
    integers = np.frombuffer(stream(key, 2 * math.prod(TENSORS[key].shape)), "<i2")
    expected = integers / 2**15 / 4 if key == "matrix.weight" else 1 + integers / 2**18
    assert np.array_equal(np.frombuffer(made(key, dtype="float32"), "<f4"), expected)


def test_the_first_generator_looks_at_no_bounds_and_makes_no_bytes() -> None:
    numbers = np.frombuffer(made("decay", generator="shake256/1", dtype="float32"), "<f4")
    assert 0.875 <= numbers.min() <= numbers.max() <= 1.125
    for key in ("codes", "scales"):
        with pytest.raises(ValueError, match="makes no"):
            made(key, generator="shake256/1")


def test_files_never_change(tmp_path: Path) -> None:
    large = {"large": SyntheticTensor(shape=(3, 1 << 20), dtype="uint8")}
    write_synthetic(
        tmp_path,
        seed=7,
        config={"vocab_size": 4},
        tensors={**TENSORS, **large},
        dtype="bfloat16",
        num_tokens=4,
        generator=QUANTIZED,
    )
    data = (tmp_path / "model.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == (
        "b2d5701cc869258bf28719c0083bfe519268db64e553aceb6c8c0b5b45040a77"
    )
    # Blocks made by several threads lie in order.
    for key in TENSORS:
        assert made(key) in data
    first = hashlib.shake_256(f"{QUANTIZED}\x007\0large\x000\0".encode()).digest(1 << 20)
    last = hashlib.shake_256(f"{QUANTIZED}\x007\0large\x002\0".encode()).digest(1 << 20)
    assert data.index(last) - data.index(first) == 2 << 20

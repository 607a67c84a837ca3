"""Random checkpoints whose every bit follows from a seed, on any machine and numpy version.

Generator ``shake256/1``: block b of a tensor is SHAKE-256 of ``shake256/1``, the seed, the key and
b, each followed by a zero byte; two bytes make one little-endian 16-bit integer v. Which tensors
there are, and what they mean, the caller says; here only the shape and a ``.bias`` ending matter:

    matrices       v / 2**15 * 2**(1 - k) with 4**k <= columns < 4**(k + 1): about 1 / sqrt(columns)
    bias vectors   v / 2**18: within 1/8 of 0
    other vectors  1 + v / 2**18: within 1/8 of 1, as a norm's weight is

Every factor is a power of two and every value exact in float32; the one rounding is to bfloat16.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.checkpoint.bfloat16 import to_bfloat16
from harness.checkpoint.cache import write_json
from harness.checkpoint.writer import TensorToWrite, write_safetensors

GENERATOR = "shake256/1"
DTYPES = ("bfloat16", "float32")
_BLOCK_ELEMENTS = 1 << 20


def write_synthetic(
    folder: Path,
    *,
    seed: int,
    config: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str,
    num_tokens: int,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write ``model.safetensors``, ``config.json`` and ``tokenizer.json`` into ``folder``.

    Args:
        folder: An empty folder.
        seed: Any integer.
        config: Written as ``config.json``, with ``torch_dtype`` added when it names no dtype.
        shapes: Shape of each tensor, by key.
        dtype: ``bfloat16`` or ``float32``.
        num_tokens: Size of the vocabulary; token i is spelled ``t<i>``.
        progress: Told the fraction of bytes written.
    """

    def tensor(key: str, shape: tuple[int, ...]) -> TensorToWrite:
        return TensorToWrite(
            dtype=dtype,
            shape=shape,
            pieces=lambda: synthetic_pieces(seed=seed, key=key, shape=shape, dtype=dtype),
        )

    tensors = {key: tensor(key, tuple(shape)) for key, shape in shapes.items()}
    write_safetensors(folder / "model.safetensors", tensors, progress=progress)
    named = {} if "torch_dtype" in config or "dtype" in config else {"torch_dtype": dtype}
    write_json(folder / "config.json", {**config, **named})
    write_json(folder / "tokenizer.json", _tokenizer(num_tokens))


def synthetic_pieces(*, seed: int, key: str, shape: tuple[int, ...], dtype: str) -> Iterator[bytes]:
    """Bytes of one tensor, a bounded block at a time."""
    num_elements = math.prod(shape)
    if len(shape) >= 2:
        columns = max(math.prod(shape[1:]), 1)
        scale, center = 2.0 ** (1 - (columns.bit_length() - 1) // 2 - 15), 0.0
    else:
        scale, center = 2.0**-18, 0.0 if key.endswith(".bias") else 1.0
    for block, begin in enumerate(range(0, num_elements, _BLOCK_ELEMENTS)):
        count = min(_BLOCK_ELEMENTS, num_elements - begin)
        recipe = b"".join(f"{part}\0".encode() for part in (GENERATOR, seed, key, block))
        integers = np.frombuffer(hashlib.shake_256(recipe).digest(2 * count), dtype="<i2")
        values = integers.astype(np.float32) * np.float32(scale) + np.float32(center)
        if dtype == "bfloat16":
            yield to_bfloat16(values).tobytes()
        else:
            yield values.astype("<f4").tobytes()


def _tokenizer(num_tokens: int) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {f"t{index}": index for index in range(num_tokens)},
            "unk_token": "t0",
        },
    }

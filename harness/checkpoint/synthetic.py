"""Random checkpoints whose every bit follows from a seed, on any machine and numpy version.

Block b of a tensor is SHAKE-256 of the generator's name, the seed, the key and b, each followed by
a zero byte. Which tensors there are, and what they mean, the caller says. In ordinary numbers two
bytes make one little-endian 16-bit integer v:

    between bounds      center + v / 2**15 * half of the distance between them
    matrices            v / 2**15 * 2**(1 - k) with 4**k <= columns < 4**(k + 1): about
                        1 / sqrt(columns)
    bias vectors        v / 2**18: within 1/8 of 0
    other vectors       1 + v / 2**18: within 1/8 of 1, as a norm's weight is

Without bounds every factor is a power of two and every value exact in float32; with them a product
and a sum are rounded once each. Then comes the one rounding to bfloat16.

Generator ``shake256/1`` makes ordinary numbers, and looks at no bounds. ``shake256-quantized/1``
also makes types of one byte, a byte from a byte: in ``uint8`` every pattern is there; in e4m3, byte
r becomes the one at r * n // 256 of the n finite patterns between the bounds, in order of size, the
negative ones (-0 too, where bounds are below zero) first.
"""

import collections
import functools
import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.checkpoint.bfloat16 import to_bfloat16
from harness.checkpoint.cache import write_json
from harness.checkpoint.synthetic_source import BYTE_DTYPES, DTYPES, PLAIN, QUANTIZED
from harness.checkpoint.writer import TensorToWrite, file_order, write_safetensors
from harness.plan.layout import SyntheticTensor

_E4M3 = "float8_e4m3fn"
_BLOCK_ELEMENTS = 1 << 20
_NUM_TABLES = 32
_BLOCKS_AHEAD = 4
"""Finished or in work beyond the one that is written, for each thread."""


def write_synthetic(
    folder: Path,
    *,
    seed: int,
    config: Mapping[str, Any],
    tensors: Mapping[str, SyntheticTensor],
    dtype: str,
    num_tokens: int,
    generator: str = PLAIN,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write ``model.safetensors``, ``config.json`` and ``tokenizer.json`` into ``folder``.

    Args:
        folder: An empty folder.
        seed: Any integer.
        config: Written as ``config.json``, with ``torch_dtype`` added when it names no dtype.
        tensors: What the checkpoint holds, by key.
        dtype: ``bfloat16`` or ``float32``, for tensors that name no dtype.
        num_tokens: Size of the vocabulary; token i is spelled ``t<i>``.
        generator: Which one makes the numbers.
        progress: Told the fraction of bytes written.
    """
    typed = {key: (tensor, tensor.dtype or dtype) for key, tensor in tensors.items()}
    blocks = {
        key: synthetic_blocks(generator, seed=seed, key=key, tensor=tensor, dtype=stored)
        for key, (tensor, stored) in typed.items()
    }
    # The writer asks for the tensors in this order, so that blocks can be made before they are due.
    order = file_order({key: stored for key, (_, stored) in typed.items()})
    num_threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(num_threads) as threads:
        due = (block for key in order for block in blocks[key])
        made = _made_ahead(due, threads, _BLOCKS_AHEAD * num_threads)
        to_write = {
            key: TensorToWrite(
                dtype=stored,
                shape=tensor.shape,
                pieces=partial(itertools.islice, made, len(blocks[key])),
            )
            for key, (tensor, stored) in typed.items()
        }
        write_safetensors(folder / "model.safetensors", to_write, progress=progress)
    named = {} if "torch_dtype" in config or "dtype" in config else {"torch_dtype": dtype}
    write_json(folder / "config.json", {**config, **named})
    write_json(folder / "tokenizer.json", _tokenizer(num_tokens))


Block = Callable[[], bytes]


def synthetic_blocks(
    generator: str, *, seed: int, key: str, tensor: SyntheticTensor, dtype: str
) -> list[Block]:
    """One tensor as blocks of a bounded size, each made when it is called.

    Raises:
        ValueError: When the generator does not make this dtype.
    """
    finish: Callable[[bytes], bytes]
    if generator == QUANTIZED and dtype in BYTE_DTYPES:
        width, finish = 1, bytes
        if dtype == _E4M3:
            finish = partial(_translated, table=_e4m3_table(*(tensor.bounds or (-448.0, 448.0))))
    elif generator in (PLAIN, QUANTIZED) and dtype in DTYPES:
        bounds = tensor.bounds if generator == QUANTIZED else None
        low, high = bounds or _usual_bounds(key, tensor.shape)
        numbers = partial(_numbers, center=(high + low) / 2, step=(high - low) / 2**16)
        width, finish = 2, partial(numbers, dtype=dtype)
    else:
        raise ValueError(f"{generator} makes no {dtype}")
    num_elements = math.prod(tensor.shape)
    return [
        partial(
            _block,
            recipe=b"".join(f"{part}\0".encode() for part in (generator, seed, key, block)),
            num_bytes=width * min(_BLOCK_ELEMENTS, num_elements - begin),
            finish=finish,
        )
        for block, begin in enumerate(range(0, num_elements, _BLOCK_ELEMENTS))
    ]


def _block(recipe: bytes, num_bytes: int, finish: Callable[[bytes], bytes]) -> bytes:
    return finish(hashlib.shake_256(recipe).digest(num_bytes))


def _usual_bounds(key: str, shape: tuple[int, ...]) -> tuple[float, float]:
    if len(shape) >= 2:
        columns = max(math.prod(shape[1:]), 1)
        half = 2.0 ** (1 - (columns.bit_length() - 1) // 2)
        return -half, half
    center = 0.0 if key.endswith(".bias") else 1.0
    return center - 0.125, center + 0.125


def _numbers(stream: bytes, *, center: float, step: float, dtype: str) -> bytes:
    numbers: bytes = _table(center, step, dtype)[np.frombuffer(stream, dtype="<u2")].tobytes()
    return numbers


@functools.lru_cache(maxsize=_NUM_TABLES)
def _table(center: float, step: float, dtype: str) -> NDArray[np.generic]:
    """The stored number of each 16-bit pattern: looked up much faster than computed."""
    integers = np.arange(1 << 16, dtype="<u2").view("<i2")
    values = integers.astype(np.float32) * np.float32(step) + np.float32(center)
    return to_bfloat16(values) if dtype == "bfloat16" else values.astype("<f4")


def _translated(stream: bytes, *, table: bytes) -> bytes:
    return stream.translate(table)


def _e4m3_table(low: float, high: float) -> bytes:
    """Pattern for each of the 256 bytes, drawn evenly from the finite ones within the bounds."""
    sizes = [
        (mantissa / 8 + (exponent > 0)) * 2.0 ** (max(exponent, 1) - 7)
        for exponent in range(16)
        for mantissa in range(8)
    ][:-1]
    negative = [0x80 | bits for bits in reversed(range(len(sizes))) if low <= -sizes[bits] <= high]
    # A scale is not negative, not even a zero.
    found = [bits for bits in negative if low < 0]
    found += [bits for bits, size in enumerate(sizes) if low <= size <= high]
    return bytes(found[byte * len(found) // 256] for byte in range(256))


def _made_ahead(
    blocks: Iterable[Block], threads: ThreadPoolExecutor, limit: int
) -> Iterator[bytes]:
    """The blocks in order, each made by some thread while ``limit`` at most are not yet taken."""
    waiting: collections.deque[Future[bytes]] = collections.deque()
    for block in blocks:
        waiting.append(threads.submit(block))
        if len(waiting) >= limit:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


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

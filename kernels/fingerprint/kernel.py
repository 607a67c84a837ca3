"""The 128-bit fingerprint of a tensor in Triton: a program digests some tiles, then one adds.

Bitwise: equals the oracle. Sums are of integers, which have one result in any order; programs
write places of their own, and nothing is added atomically.

Compiled, a program takes 3.5 instructions of a thread for each byte, and loads 16 bytes at a time.
A GPU of 132 multiprocessors at 1.7 GHz issues that many for 8 TB/s: memory is what it waits for.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.configurations import FINGERPRINT
from kernels.device_code import (
    WIDE_BYTES,
    Variant,
    one_binary,
    require_reachable,
    variant,
)
from kernels.fingerprint.reference import KEY_SEEDS, TILE_WORDS
from kernels.fingerprint.words import as_words

OP = "fingerprint"
_ADDED_AT_ONCE = 1024


@triton.jit
def _times(x, high: tl.constexpr, low: tl.constexpr):
    """``x`` times a 64-bit constant modulo 2^64, whose halves are given."""
    factor = (tl.full([1], high, tl.uint64) << 32) + tl.full([1], low, tl.uint64)
    return x * factor


@triton.jit
def _mix(x):
    """The finalizer of SplitMix64, of uint64."""
    x = _times(x ^ (x >> 30), 0xBF58476D, 0x1CE4E5B9)
    x = _times(x ^ (x >> 27), 0x94D049BB, 0x133111EB)
    return x ^ (x >> 31)


@triton.jit
def _keys(seed: tl.constexpr, place):
    """The keys of places in a tile, uint32."""
    x = place.to(tl.uint32) * 0x9E3779B9 + seed
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def _numbers(first, second, seed: tl.constexpr, HALF: tl.constexpr):
    """The sums of tiles' products, uint64 [TILES]."""
    place = tl.arange(0, HALF)
    a = (first + _keys(seed, place)[None, :]).to(tl.uint64)
    b = (second + _keys(seed, place + HALF)[None, :]).to(tl.uint64)
    return tl.sum((a * b).to(tl.int64), axis=1).to(tl.uint64)


@triton.jit
def _words(source, index, num_words, MASKED: tl.constexpr):
    """The words from ``source`` on, uint32; zero from ``num_words`` on."""
    if MASKED:
        return tl.load(source + index, mask=index < num_words, other=0).to(tl.uint32)
    return tl.load(source + index).to(tl.uint32)


@triton.jit
def _tiles(
    words,
    tile,
    num_words,
    SEED_0: tl.constexpr,
    SEED_1: tl.constexpr,
    HALF: tl.constexpr,
    TILES: tl.constexpr,
    ALIGN: tl.constexpr,
    MASKED: tl.constexpr,
):
    """What the TILES tiles from ``tile`` on give, of both lanes: two uint64 [1]."""
    # Counted from the first tile's words, places fit 32 bits.
    source = tl.multiple_of(words + tile * (2 * HALF), ALIGN)
    left = tl.minimum(num_words - tile * (2 * HALF), TILES * 2 * HALF).to(tl.int32)
    row = tl.arange(0, TILES)
    index = row[:, None] * (2 * HALF) + tl.arange(0, HALF)[None, :]
    first = _words(source, index, left, MASKED)
    second = _words(source, index + HALF, left, MASKED)
    step = _times(
        tl.zeros([TILES], tl.uint64) + (tile + row + 1).to(tl.uint64), 0x9E3779B9, 0x7F4A7C15
    )
    mixed_0 = _mix(step + _numbers(first, second, SEED_0, HALF))
    mixed_1 = _mix(step + _numbers(first, second, SEED_1, HALF))
    zero = tl.zeros([1], tl.int64)
    return (
        zero + tl.sum(mixed_0.to(tl.int64), axis=0),
        zero + tl.sum(mixed_1.to(tl.int64), axis=0),
    )


@one_binary
def tiles_kernel(
    words,
    partial,
    num_words_low,
    num_words_high,
    SEED_0: tl.constexpr,
    SEED_1: tl.constexpr,
    HALF: tl.constexpr,
    TILES: tl.constexpr,
    TURNS: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """What TURNS times TILES tiles give, of both lanes, at an address of whole 16 bytes.

    The number of words is passed in halves of 30 bits.
    """
    program = tl.program_id(0).to(tl.int64)
    num_words = num_words_high.to(tl.int64) * 1073741824 + num_words_low
    begin = program * (TURNS * TILES)
    sum_0 = tl.zeros([1], tl.int64)
    sum_1 = tl.zeros([1], tl.int64)
    # Only the last program meets the end of the words.
    if (begin + TURNS * TILES) * (2 * HALF) <= num_words:
        for turn in range(0, TURNS):
            tile = begin + turn * TILES
            of_0, of_1 = _tiles(words, tile, num_words, SEED_0, SEED_1, HALF, TILES, ALIGN, False)
            sum_0 += of_0
            sum_1 += of_1
    else:
        # Tiles that do not exist count nothing.
        for tile in range(begin, (num_words + 2 * HALF - 1) // (2 * HALF)):
            of_0, of_1 = _tiles(words, tile, num_words, SEED_0, SEED_1, HALF, 1, ALIGN, True)
            sum_0 += of_0
            sum_1 += of_1
    lane = tl.arange(0, 1)
    tl.store(partial + program * 2 + lane, sum_0)
    tl.store(partial + program * 2 + 1 + lane, sum_1)


@one_binary
def add_kernel(partial, out, count, num_bytes_low, num_bytes_high, BLOCK: tl.constexpr):
    """Add what programs gave, lane by lane, and mix in the number of bytes."""
    lane = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.int64)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        total += tl.load(partial + place.to(tl.int64) * 2 + lane, mask=place < count, other=0)
    num_bytes = num_bytes_high.to(tl.int64) * 1073741824 + num_bytes_low
    result = _mix(tl.zeros([1], tl.uint64) + (tl.sum(total, axis=0) + num_bytes).to(tl.uint64))
    tl.store(out + lane + tl.arange(0, 1), result.to(tl.int64))


def fingerprint(x: torch.Tensor) -> torch.Tensor:
    """The fingerprint of a tensor of any shape and dtype, as int64 [2] on its device."""
    require_reachable(OP, x)
    words, num_bytes = as_words(x)
    tiles = FINGERPRINT.blocks["TILES"] * FINGERPRINT.blocks["TURNS"]
    count = -(-words.shape[0] // (TILE_WORDS * tiles))
    partial = torch.empty((count, 2), dtype=torch.int64, device=x.device)
    out = torch.empty(2, dtype=torch.int64, device=x.device)
    options = {"num_warps": FINGERPRINT.num_warps, "num_stages": FINGERPRINT.num_stages}
    if count:
        tiles_kernel[(count,)](
            words,
            partial,
            *_halves(words.shape[0]),
            SEED_0=KEY_SEEDS[0],
            SEED_1=KEY_SEEDS[1],
            HALF=TILE_WORDS // 2,
            ALIGN=WIDE_BYTES,
            **FINGERPRINT.blocks,
            **options,
        )
    add_kernel[(2,)](partial, out, count, *_halves(num_bytes), BLOCK=_ADDED_AT_ONCE, **options)
    return out


def _halves(value: int) -> tuple[int, int]:
    """The low 30 bits and the rest: a number beyond 32 bits would be another binary."""
    return value % (1 << 30), value >> 30


def variants() -> Iterator[Variant]:
    """Both kernels."""
    yield variant(
        "tiles",
        tiles_kernel,
        FINGERPRINT,
        "words:i32 partial:i64",
        SEED_0=KEY_SEEDS[0],
        SEED_1=KEY_SEEDS[1],
        HALF=TILE_WORDS // 2,
        ALIGN=WIDE_BYTES,
    )
    yield Variant(
        name="add",
        kernel=add_kernel,
        types=variant("add", add_kernel, FINGERPRINT, "partial:i64 out:i64").types,
        constants={"BLOCK": _ADDED_AT_ONCE},
        num_warps=FINGERPRINT.num_warps,
        num_stages=FINGERPRINT.num_stages,
    )

"""The 128-bit fingerprint of a tensor on the CPU: int64 arithmetic, which wraps modulo 2^64."""

import functools

import torch

from kernels.fingerprint.reference import KEY_SEEDS, STEP, TILE_WORDS
from kernels.fingerprint.words import as_words

_WORD = (1 << 32) - 1
_TILES_AT_ONCE = 256
"""4 MiB of words; their products take eight times that."""


def fingerprint(x: torch.Tensor) -> torch.Tensor:
    """The fingerprint of a tensor of any shape and dtype, as int64 [2]."""
    words, num_bytes = as_words(x)
    step = _TILES_AT_ONCE * TILE_WORDS
    sums = [torch.zeros((), dtype=torch.int64) for _ in KEY_SEEDS]
    for start in range(0, words.shape[0], step):
        piece = words[start : start + step]
        missing = -piece.shape[0] % TILE_WORDS
        tiles = torch.nn.functional.pad(piece, (0, missing)).view(-1, 2, TILE_WORDS // 2)
        place = torch.arange(tiles.shape[0]) + (start // TILE_WORDS + 1)
        for lane, seed in enumerate(KEY_SEEDS):
            first, second = (tiles.to(torch.int64) + _keys(seed) & _WORD).unbind(1)
            numbers = (first * second).sum(dim=1)
            sums[lane] += _mix(numbers + place * _signed(STEP)).sum()
    return _mix(torch.stack(sums) + num_bytes)


@functools.cache
def _keys(seed: int) -> torch.Tensor:
    x = torch.arange(TILE_WORDS) * 0x9E3779B9 + seed & _WORD
    x = (x ^ x >> 16) * 0x85EBCA6B & _WORD
    x = (x ^ x >> 13) * 0xC2B2AE35 & _WORD
    return (x ^ x >> 16).view(2, TILE_WORDS // 2)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right without copies of the sign."""
    return x >> bits & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value

"""The 128-bit fingerprint of a tensor's bytes, the oracle: whole numbers of Python.

The bytes, in row-major order, are little-endian 32-bit words w, padded with zero words to tiles of
4,096. Within tile t, word j < 2,048 meets word j + 2,048, as in the hash NH of UMAC (RFC 4418):

    n(t, lane) = sum over j of (w[j] + a[j]) * (w[j + 2048] + a[j + 2048])

with sums of 32 bits inside the brackets and of 64 bits outside, and keys a of the lane (0 or 1).
A tile's number is mixed with its place, and what tiles give is added:

    s(lane) = sum over t of mix(n(t, lane) + (t + 1) * STEP)
    fingerprint(lane) = mix(s(lane) + number of bytes)

mix is the finalizer of SplitMix64. Sums of integers have one result in any order, so a fingerprint
depends neither on the order of programs nor on how many tiles one takes. Two given tensors that
differ get equal fingerprints with a probability of about 2^-64 over the keys; the keys are fixed,
so it finds accidents and is no defence against an adversary.
"""

import torch

from kernels.fingerprint.words import as_bytes

TILE_WORDS = 4096
STEP = 0x9E3779B97F4A7C15
KEY_SEEDS = (0x243F6A88, 0x85A308D3)
"""Of the lanes: the first digits of pi."""
_WORD, _LONG = (1 << 32) - 1, (1 << 64) - 1


def fingerprint(x: torch.Tensor) -> torch.Tensor:
    """The fingerprint of a tensor of any shape and dtype, as int64 [2]."""
    data = bytes(as_bytes(x).tolist())
    num_tiles = -(-len(data) // (4 * TILE_WORDS))
    padded = data.ljust(num_tiles * 4 * TILE_WORDS, b"\0")
    words = [int.from_bytes(padded[i : i + 4], "little") for i in range(0, len(padded), 4)]
    lanes = []
    for seed in KEY_SEEDS:
        keys = [_key(seed, j) for j in range(TILE_WORDS)]
        total = 0
        for tile in range(num_tiles):
            inside = words[tile * TILE_WORDS : (tile + 1) * TILE_WORDS]
            keyed = [(word + key) & _WORD for word, key in zip(inside, keys, strict=True)]
            half = TILE_WORDS // 2
            number = sum(a * b for a, b in zip(keyed[:half], keyed[half:], strict=True))
            total += _mix((number + (tile + 1) * STEP) & _LONG)
        lanes.append(_mix((total + len(data)) & _LONG))
    return torch.tensor([lane - (1 << 64) if lane >> 63 else lane for lane in lanes])


def _key(seed: int, j: int) -> int:
    """The finalizer of MurmurHash3 (32 bits) of the place in a tile."""
    x = (seed + j * 0x9E3779B9) & _WORD
    x = ((x ^ x >> 16) * 0x85EBCA6B) & _WORD
    x = ((x ^ x >> 13) * 0xC2B2AE35) & _WORD
    return x ^ x >> 16


def _mix(x: int) -> int:
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _LONG
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _LONG
    return x ^ x >> 31

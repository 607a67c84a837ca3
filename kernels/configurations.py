"""The pinned configurations of the Triton kernels: one per op and shape class, none found by trial.

A configuration decides the order of a kernel's sums, hence bits. It therefore depends on dtypes
and on sizes that a model fixes (hidden size, head size), never on the number of rows or positions
of a step. Changing an entry changes bits: it needs a new version of the kernel set.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """How one kernel is compiled for one shape class."""

    blocks: Mapping[str, int]
    """Tile sizes, powers of two, by the kernel's parameter name."""
    num_warps: int
    num_stages: int = 1
    """Depth of the software pipeline of a loop of loads."""


def padded(size: int, least: int = 16) -> int:
    """The least power of two of ``size`` or more, and of ``least`` or more."""
    return max(least, 1 << max(0, size - 1).bit_length())


ELEMENTWISE = Configuration(blocks={"BLOCK": 1024}, num_warps=4)
"""Ops without sums (activations, cap, copies): bits do not depend on it."""

ROPE = Configuration(blocks={"BLOCK_HEADS": 8}, num_warps=4)
"""Without sums either. A tile holds 8 heads of one row."""

KV_COPY = Configuration(blocks={"BLOCK_HEADS": 8}, num_warps=4)
"""Copies of 8 heads of one row."""

RMS_NORM = {
    size: Configuration(blocks={"BLOCK": size}, num_warps=warps)
    for size, warps in (
        *((size, 1) for size in (16, 32, 64, 128, 256)),
        *((size, 4) for size in (512, 1024, 2048, 4096)),
        (8192, 8),
        (16384, 16),
    )
}
"""By the padded size of a row, which one program reads at once."""


def _linear(rows: int, outputs: int, columns: int, stages: int) -> Configuration:
    blocks = {"BLOCK_ROWS": rows, "BLOCK_OUTPUTS": outputs, "BLOCK_COLUMNS": columns}
    return Configuration(blocks=blocks, num_warps=4, num_stages=stages)


LINEAR = {
    (torch.bfloat16, True): _linear(64, 64, 64, 3),
    (torch.bfloat16, False): _linear(32, 32, 32, 1),
    (torch.float32, True): _linear(32, 32, 32, 2),
    (torch.float32, False): _linear(32, 32, 32, 1),
}
"""By dtype and whether a row of the weight is a whole number of wide loads. One tile for one row
and for many: instructions differ between tiles, and bits might."""

SPLIT_POSITIONS = 512
"""Attention is computed over runs of this many positions, at absolute multiples of it, which are
then joined in ascending order. It bounds what one program of a decode step reads."""


def _attention(lanes: int, keys: int, warps: int, stages: int = 1) -> Configuration:
    blocks = {"BLOCK_LANES": lanes, "BLOCK_KEYS": keys}
    return Configuration(blocks=blocks, num_warps=warps, num_stages=stages)


ATTENTION = {
    torch.bfloat16: {
        16: _attention(64, 64, 4, 2),
        32: _attention(64, 64, 4, 2),
        64: _attention(64, 64, 4, 2),
        128: _attention(64, 32, 4, 2),
        256: _attention(32, 32, 4, 2),
        512: _attention(32, 32, 8, 1),
    },
    torch.float32: {
        16: _attention(32, 32, 4),
        32: _attention(32, 32, 4),
        64: _attention(32, 32, 4),
        128: _attention(16, 16, 4),
        256: _attention(16, 16, 4),
        512: _attention(16, 16, 8),
    },
}
"""By dtype and padded head size. A lane is one query head of one row."""

ATTENTION_JOIN = Configuration(blocks={"BLOCK_LANES": 16}, num_warps=4)
"""Joins runs in ascending order; bits do not depend on it."""

ATTENTION_WORKSPACE_BYTES = 256 << 20
"""Bound of what attention holds between its kernels; rows beyond it wait. Bits do not depend on
it."""

GREEDY = Configuration(blocks={"BLOCK": 4096}, num_warps=8)
"""A maximum has one result in any order; at most 4,096 blocks are joined at once."""

FINGERPRINT = Configuration(blocks={"TILES": 2, "TURNS": 4}, num_warps=8)
"""A program digests TILES tiles at a time, TURNS times; sums of integers have one result in any
order."""

CAUSAL_CONV = Configuration(blocks={"BLOCK_ROWS": 8, "BLOCK_CHANNELS": 128}, num_warps=4)
"""Each element sums its taps alone, oldest first: bits do not depend on it."""

DELTA_RULE = {
    size: Configuration(blocks={"BLOCK_VALUES": 8}, num_warps=warps)
    for size, warps in ((16, 1), (32, 1), (64, 1), (128, 1), (256, 2))
}
"""By padded key size. A program holds the state of one head and 8 value columns in registers."""
DELTA_RULE_FACTORS = Configuration(blocks={"BLOCK_KEYS": 32}, num_warps=4)
DELTA_RULE_PASS = Configuration(blocks={"BLOCK_KEYS": 32, "BLOCK_VALUES": 32}, num_warps=4)
"""The form in chunks, of every size: keys are summed in ascending blocks."""

FP8_LINEAR = {
    (torch.bfloat16, True): _linear(32, 32, 128, 3),
    (torch.bfloat16, False): _linear(32, 32, 32, 1),
    (torch.float32, True): _linear(32, 32, 64, 2),
    (torch.float32, False): _linear(16, 32, 32, 1),
}
"""By dtype of x and whether a row of the weight is a whole number of wide loads."""

NVFP4_LINEAR = {
    (torch.bfloat16, True): _linear(32, 32, 128, 3),
    (torch.bfloat16, False): _linear(32, 32, 64, 1),
    (torch.float32, True): _linear(16, 32, 64, 2),
    (torch.float32, False): _linear(16, 32, 64, 1),
}
"""By dtype of x and whether a row of codes is a whole number of wide loads."""

MOE_ROWS = 16
"""Rows in a tile of one expert, the least that a matrix unit takes: most experts get few rows."""
MOE_DENSE = {
    (torch.bfloat16, True): _linear(MOE_ROWS, 32, 128, 3),
    (torch.bfloat16, False): _linear(MOE_ROWS, 32, 32, 1),
    (torch.float32, True): _linear(MOE_ROWS, 32, 64, 2),
    (torch.float32, False): _linear(MOE_ROWS, 32, 32, 1),
}
"""By dtype and whether a row of the weight is a whole number of wide loads."""
MOE_NVFP4 = {
    (torch.bfloat16, True): _linear(MOE_ROWS, 32, 128, 3),
    (torch.bfloat16, False): _linear(MOE_ROWS, 32, 64, 1),
    (torch.float32, True): _linear(MOE_ROWS, 32, 64, 2),
    (torch.float32, False): _linear(MOE_ROWS, 32, 64, 1),
}
"""By dtype of x and whether a row of codes is a whole number of wide loads."""
MOE_ROUTE = {
    256: Configuration(blocks={"BLOCK": 256}, num_warps=1),
    1024: Configuration(blocks={"BLOCK": 1024}, num_warps=4),
}
"""By the most experts whose logits one program reads at once."""
MOE_SHARED_GATE = Configuration(blocks={"BLOCK": 1024}, num_warps=4)
"""One program sums a row by ascending blocks."""
MOE_GROUP = Configuration(blocks={"BLOCK": 1024}, num_warps=4)
"""Counts of integers have one result in any order."""
MOE_WORKSPACE_BYTES = 256 << 20
"""Bound of what the routed experts hold between their kernels; rows beyond it wait. Bits do not
depend on it."""

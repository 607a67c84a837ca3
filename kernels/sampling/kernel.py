"""Greedy choice of a token in Triton: blocks of the row first, then what they found.

V vocabulary size.

Bitwise: equals the oracle. A maximum has one result in any order, and of equals the lowest index
is taken; programs write places of their own.
"""

import math
from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.configurations import GREEDY, padded
from kernels.device_code import (
    FLOATS,
    Variant,
    one_binary,
    require_device,
    type_name,
    variant,
    widen,
)
from kernels.kernel_sets import require

OP = "sampling"
_SHIPPED_FOUND = 64
_LARGEST_FOUND = 4096


@triton.jit
def _best(values, indices, inside):
    """The largest value, NaN above all; its lowest index; and the largest of the others."""
    last: tl.constexpr = 2147483647
    unknown = (values != values) & inside
    first_unknown = tl.min(tl.where(unknown, indices, last), axis=0)
    numbers = tl.where(inside & (values == values), values, float("-inf"))
    largest = tl.max(numbers, axis=0)
    index = tl.min(tl.where(inside & (numbers == largest), indices, last), axis=0)
    others = tl.where(indices == index, float("-inf"), numbers)
    second = tl.max(others, axis=0)
    has_unknown = first_unknown < last
    return (
        tl.where(has_unknown, float("nan"), largest),
        tl.where(has_unknown, first_unknown, index),
        second,
    )


@one_binary
def best_of_blocks_kernel(logits, best, second, index, stride, size, BLOCK: tl.constexpr):
    """What each block of the row found."""
    block = tl.program_id(0)
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    values = widen(tl.load(logits + place.to(tl.int64) * stride, mask=inside, other=0.0))
    largest, where, runner_up = _best(values, place, inside)
    tl.store(best + block, largest)
    tl.store(index + block, where)
    tl.store(second + block, runner_up)


@one_binary
def best_of_found_kernel(best, second, index, result, token, count, BLOCK: tl.constexpr):
    """The best of what blocks found; the second is another block's best, or its own second."""
    block = tl.arange(0, BLOCK)
    inside = block < count
    values = tl.load(best + block, mask=inside, other=0.0)
    places = tl.load(index + block, mask=inside, other=2147483647)
    largest, where, runner_up = _best(values, places, inside)
    seconds = tl.load(second + block, mask=inside & (places == where), other=float("-inf"))
    tl.store(result, largest)
    tl.store(result + 1, tl.maximum(runner_up, tl.max(seconds, axis=0)))
    tl.store(token, where)


def greedy(logits: torch.Tensor) -> tuple[int, float]:
    """The lowest index of the largest of [V], and its margin over the second largest."""
    require_device(OP, logits)
    size, block = logits.shape[0], GREEDY.blocks["BLOCK"]
    count = -(-size // block)
    require(count <= _LARGEST_FOUND, OP, f"at most {block * _LARGEST_FOUND} logits", size)
    best, second = torch.empty((2, count), device=logits.device).unbind(0)
    index = torch.empty(count, dtype=torch.int32, device=logits.device)
    # One tensor of both, so that the host waits once.
    found = torch.empty(3, dtype=torch.int32, device=logits.device)
    result, token = found[:2].view(torch.float32), found[2:]
    options = {"num_warps": GREEDY.num_warps, "num_stages": GREEDY.num_stages}
    best_of_blocks_kernel[(count,)](
        logits, best, second, index, logits.stride(0), size, BLOCK=block, **options
    )
    best_of_found_kernel[(1,)](
        best, second, index, result, token, count, BLOCK=padded(count, 64), **options
    )
    found = found.cpu()
    chosen, largest, runner_up = int(found[2]), *found[:2].view(torch.float32).tolist()
    if math.isnan(largest):
        return chosen, math.nan
    return chosen, largest - runner_up if largest != runner_up else 0.0


def variants() -> Iterator[Variant]:
    """Both steps; the second up to the largest number of blocks."""
    for dtype in FLOATS:
        name = type_name(dtype)
        pointers = f"logits:{name} best:fp32 second:fp32 index:i32"
        yield variant(f"{name} blocks", best_of_blocks_kernel, GREEDY, pointers)
    for count in (_SHIPPED_FOUND, _LARGEST_FOUND):
        pointers = "best:fp32 second:fp32 index:i32 result:fp32 token:i32"
        yield variant(f"found {count}", best_of_found_kernel, GREEDY, pointers, BLOCK=count)

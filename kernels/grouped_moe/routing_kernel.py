"""Routing of rows to experts in Triton, and the grouping of what is routed. Multiplies no weight.

R rows, k experts per row, P = R k pairs of a row and a rank, E experts, T tiles.

Bitwise: repeats; a row's routing depends on its logits alone, since one program reads the whole row
at once. Groups are integers: each expert's pairs in ascending order, in tiles of its own.

    expert   0         2         2         5           tiles of 4 here; other experts have no pair
    pairs    3 . . .   0 4 6 8   9 . . .   1 . . .     -1 where a tile has no more (.)
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton.language as tl

from kernels.configurations import MOE_GROUP, MOE_ROUTE, MOE_ROWS, padded
from kernels.device_code import (
    FLOATS,
    Variant,
    one_binary,
    require_device,
    type_name,
    variant,
    widen,
)
from kernels.grouped_moe.records import Routing
from kernels.kernel_sets import require

OP = "grouped_moe"
_SHIPPED_EXPERTS, _SHIPPED_TOP_K = 256, 8


@one_binary
def route_kernel(
    logits,
    expert_ids,
    weights,
    margins,
    num_experts,
    row_stride,
    column_stride,
    TOP_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The most probable experts of one row, by a softmax in float32; NaN above all."""
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    inside = expert < num_experts
    place = logits + row * row_stride + expert.to(tl.int64) * column_stride
    values = widen(tl.load(place, mask=inside, other=float("-inf")))
    powers = tl.where(inside, tl.exp(values - tl.max(values, axis=0)), 0.0)
    probabilities = powers / tl.sum(powers, axis=0)
    # Each in [0, 1], or NaN in the whole row; what is taken, or no expert, stands below.
    order = tl.where(probabilities == probabilities, probabilities, 2.0)
    order = tl.where(inside, order, -1.0)
    rank = tl.arange(0, BLOCK_K)
    chosen = tl.zeros([BLOCK_K], tl.float32)
    ids = tl.zeros([BLOCK_K], tl.int32)
    total = 0.0
    last = 0.0
    for step in range(0, TOP_K):
        index = tl.min(tl.where(order == tl.max(order, axis=0), expert, BLOCK), axis=0)
        last = tl.sum(tl.where(expert == index, probabilities, 0.0), axis=0)
        chosen = tl.where(rank == step, last, chosen)
        ids = tl.where(rank == step, index, ids)
        total += last
        order = tl.where(expert == index, -1.0, order)
    rejected = tl.max(order, axis=0)
    margin = last - tl.where(rejected < 0.0, 0.0, rejected)
    tl.store(margins + row, margin)
    tl.store(expert_ids + row * TOP_K + rank, ids.to(tl.int64), mask=rank < TOP_K)
    tl.store(weights + row * TOP_K + rank, chosen / total, mask=rank < TOP_K)


@one_binary
def count_kernel(expert_ids, counts, num_pairs, BLOCK: tl.constexpr):
    """How many pairs go to one expert."""
    expert = tl.program_id(0)
    found = tl.zeros([BLOCK], tl.int32)
    for start in range(0, num_pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        ids = tl.load(expert_ids + pair, mask=pair < num_pairs, other=-1)
        found += (ids == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(found, axis=0))


@one_binary
def place_kernel(
    expert_ids,
    counts,
    num_tiles,
    experts,
    pairs,
    num_pairs,
    num_experts,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
):
    """Put the pairs of one expert into its tiles, which lie behind those of lower ids."""
    expert = tl.program_id(0)
    other = tl.arange(0, BLOCK_EXPERTS)
    tiles = tl.load(counts + other, mask=other < num_experts, other=0)
    tiles = (tiles + TILE - 1) // TILE
    first = tl.sum(tl.where(other < expert, tiles, 0), axis=0)
    end = first + tl.sum(tl.where(other == expert, tiles, 0), axis=0)
    tl.store(num_tiles, end, mask=expert == num_experts - 1)
    for tile in range(first, end):
        tl.store(experts + tile, expert)
    place = first * TILE
    for start in range(0, num_pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        hit = tl.load(expert_ids + pair, mask=pair < num_pairs, other=-1) == expert
        count = hit.to(tl.int32)
        tl.store(pairs + place + tl.cumsum(count, axis=0) - 1, pair, mask=hit)
        place += tl.sum(count, axis=0)
    rest = place + tl.arange(0, TILE)
    tl.store(pairs + rest, tl.full([TILE], -1, tl.int32), mask=rest < end * TILE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    """Pairs by expert, on the device."""

    num_pairs: int
    max_tiles: int
    """The most tiles there can be; known without the device."""
    num_tiles: torch.Tensor
    """int32 [1]."""
    experts: torch.Tensor
    """int32 [max_tiles]: the expert of each tile, up to ``num_tiles``."""
    pairs: torch.Tensor
    """int32 [max_tiles * tile]: ``row * k + rank``, -1 for none."""


def route(logits: torch.Tensor, top_k: int) -> Routing:
    """The ``top_k`` most probable of [R, E], lowest id first among equal float32 probabilities."""
    require_device(OP, logits)
    rows, num_experts = logits.shape
    largest = max(MOE_ROUTE)
    require(num_experts <= largest, OP, f"at most {largest} experts", num_experts)
    expert_ids = torch.empty((rows, top_k), dtype=torch.int64, device=logits.device)
    weights = torch.empty((rows, top_k), device=logits.device)
    margins = torch.empty(rows, device=logits.device)
    if rows:
        configuration = MOE_ROUTE[min(size for size in MOE_ROUTE if size >= num_experts)]
        route_kernel[(rows,)](
            logits,
            expert_ids,
            weights,
            margins,
            num_experts,
            *logits.stride(),
            TOP_K=top_k,
            BLOCK_K=padded(top_k),
            **configuration.blocks,
            num_warps=configuration.num_warps,
            num_stages=configuration.num_stages,
        )
    return Routing(expert_ids=expert_ids, weights=weights, margins=margins)


def group_pairs(expert_ids: torch.Tensor, num_experts: int) -> Groups:
    """Group the pairs of contiguous ids [R, k] in [0, E); no pair is no group."""
    num_pairs = expert_ids.numel()
    # Every expert that has pairs at all fills its last tile with one pair at least.
    max_tiles = (num_pairs + min(num_pairs, num_experts) * (MOE_ROWS - 1)) // MOE_ROWS
    sizes = [num_experts, 1, max_tiles, max_tiles * MOE_ROWS]
    whole = torch.empty(sum(sizes), dtype=torch.int32, device=expert_ids.device)
    counts, num_tiles, experts, pairs = whole.split(sizes)
    options = {**MOE_GROUP.blocks, "num_warps": MOE_GROUP.num_warps}
    count_kernel[(num_experts,)](expert_ids, counts, num_pairs, **options)
    place_kernel[(num_experts,)](
        expert_ids,
        counts,
        num_tiles,
        experts,
        pairs,
        num_pairs,
        num_experts,
        TILE=MOE_ROWS,
        BLOCK_EXPERTS=padded(num_experts),
        **options,
    )
    return Groups(
        num_pairs=num_pairs,
        max_tiles=max_tiles,
        num_tiles=num_tiles,
        experts=experts,
        pairs=pairs,
    )


def routing_variants() -> Iterator[Variant]:
    """Routing by both sizes, and the grouping."""
    for dtype in FLOATS:
        name = type_name(dtype)
        for size, configuration in MOE_ROUTE.items():
            yield variant(
                f"{name} route {size}",
                route_kernel,
                configuration,
                f"logits:{name} expert_ids:i64 weights:fp32 margins:fp32",
                TOP_K=_SHIPPED_TOP_K,
                BLOCK_K=padded(_SHIPPED_TOP_K),
            )
    yield variant("count", count_kernel, MOE_GROUP, "expert_ids:i64 counts:i32")
    yield variant(
        "place",
        place_kernel,
        MOE_GROUP,
        "expert_ids:i64 counts:i32 num_tiles:i32 experts:i32 pairs:i32",
        TILE=MOE_ROWS,
        BLOCK_EXPERTS=_SHIPPED_EXPERTS,
    )

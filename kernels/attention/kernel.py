"""Causal grouped-query attention in Triton, over positions in order or through a slot table.

R rows, T positions, H query heads, K KV heads, G = H / K, D head size, S slots. A lane is one query
head of one row; a tile is the lanes of neighbouring rows that share a KV head.

positions  0        512       1024            absolute runs, whatever the step starts at
           |---------|---------|----+         one program per tile, KV head and run:
                |#### #########|####|         online softmax over blocks of keys in ascending order
                ^ first that a row reads      then one program per row and head joins its runs, in
                                              ascending order

The position of the first row is read on the device: a recorded launch serves every position up to
the one that its grid was made for. Runs beyond it read nothing.

Bitwise: repeats; for finite inputs a row's bits depend on its query, on the keys and values it
reads, its position, and the window alone. Runs and blocks lie at absolute multiples; a block that
a row does not read adds exact zeros and a factor of 1; prefill and decode are one binary. It
assumes what matrix units do: an element of a product depends on its row and column alone.
"""

from collections.abc import Iterator
from typing import Any

import torch
import triton.language as tl

from kernels import configurations
from kernels.attention.context import AttentionContext, check_positions
from kernels.configurations import ATTENTION, ATTENTION_JOIN, SPLIT_POSITIONS, padded
from kernels.device_code import (
    FLOATS,
    WIDE_BYTES,
    Variant,
    dot,
    narrow,
    one_binary,
    placed_by_size,
    require_device,
    tanh,
    type_name,
    variant,
)
from kernels.kernel_sets import require

OP = "attention"
_NO_WINDOW = 1 << 30
"""Wider than any context: the row at position p reads from 0."""


@one_binary
def attend_kernel(
    q,
    k,
    v,
    slots,
    maxima,
    sums,
    mixed,
    scale,
    softcap,
    num_rows,
    num_heads,
    position_of_first,
    num_rows_before,
    first_position,
    window,
    num_splits,
    slots_stride,
    q_row,
    q_head,
    k_slot,
    k_head,
    v_slot,
    v_head,
    GROUP: tl.constexpr,
    TILE_GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_LANES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """One run of positions for one tile: running maximum, sum and unscaled mix of each lane."""
    rows_per_tile: tl.constexpr = BLOCK_LANES // TILE_GROUP
    first_row = tl.program_id(0) * rows_per_tile
    first_head = tl.program_id(1) * TILE_GROUP
    split = tl.program_id(2)
    kv_head = (first_head // GROUP).to(tl.int64)
    lane = tl.arange(0, BLOCK_LANES)
    row = first_row + lane // TILE_GROUP
    head = first_head + lane % TILE_GROUP
    active = (lane < rows_per_tile * TILE_GROUP) & (row < num_rows)
    start_position = tl.load(position_of_first).to(tl.int32) + num_rows_before
    first_split = tl.maximum(start_position - window + 1, 0) // SPLIT
    position = start_position + row
    column = tl.arange(0, BLOCK_SIZE)
    inside = column < SIZE
    source = q + row.to(tl.int64)[:, None] * q_row + head[:, None] * q_head
    source = tl.multiple_of(source, [ALIGN, ALIGN]) + column[None, :]
    queries = tl.load(source, mask=active[:, None] & inside[None, :], other=0.0)

    # What some row of the tile reads of this run, from the block in which it begins.
    oldest = tl.maximum(start_position + first_row - window + 1, first_position)
    low = tl.maximum(oldest, (first_split + split) * SPLIT)
    begin = low // BLOCK_KEYS * BLOCK_KEYS
    tile_end = start_position + tl.minimum(first_row + rows_per_tile, num_rows)
    end = tl.minimum(tile_end, (first_split + split + 1) * SPLIT)

    largest = tl.full([BLOCK_LANES], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_LANES], tl.float32)
    mix = tl.zeros([BLOCK_LANES, BLOCK_SIZE], tl.float32)
    for block in range(begin, end, BLOCK_KEYS):
        key = block + tl.arange(0, BLOCK_KEYS)
        present = (key >= oldest) & (key < tile_end)
        place = (key - first_position).to(tl.int64)
        if HAS_SLOTS:
            place = tl.load(slots + place * slots_stride, mask=present, other=0)
        key_source = (k + kv_head * k_head) + place[None, :] * k_slot
        key_source = tl.multiple_of(key_source, [ALIGN, ALIGN]) + column[:, None]
        keys = tl.load(key_source, mask=inside[:, None] & present[None, :], other=0.0)
        value_source = (v + kv_head * v_head) + place[:, None] * v_slot
        value_source = tl.multiple_of(value_source, [ALIGN, ALIGN]) + column[None, :]
        values = tl.load(value_source, mask=present[:, None] & inside[None, :], other=0.0)

        scores = dot(queries, keys) * scale
        if HAS_CAP:
            scores = tanh(scores / softcap) * softcap
        age = position[:, None] - key[None, :]
        visible = present[None, :] & (age >= 0) & (age < window)
        scores = tl.where(visible, scores * 1.4426950408889634, float("-inf"))  # log2(e)
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        # Before a lane has read anything its maximum is -inf, and a difference would be a NaN.
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        kept = tl.exp2(largest - base)
        weights = tl.exp2(scores - base[:, None])
        total = total * kept + tl.sum(weights, axis=1)
        mix = mix * kept[:, None] + dot(narrow(weights, v.dtype.element_ty), values)
        largest = new_largest

    target = (row.to(tl.int64) * num_heads + head) * num_splits + split
    tl.store(maxima + target, largest, mask=active)
    tl.store(sums + target, total, mask=active)
    has_read = active & (largest > float("-inf"))
    target = mixed + target[:, None] * BLOCK_SIZE + column[None, :]
    tl.store(target, mix, mask=has_read[:, None])


@one_binary
def join_kernel(
    maxima,
    sums,
    mixed,
    out,
    num_heads_of_rows,
    num_splits,
    SIZE: tl.constexpr,
    BLOCK_LANES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Join the runs of each head of each row; one that it does not read adds exact zeros."""
    lane = tl.program_id(0).to(tl.int64) * BLOCK_LANES + tl.arange(0, BLOCK_LANES)
    active = lane < num_heads_of_rows
    column = tl.arange(0, BLOCK_SIZE)[None, :]
    largest = tl.full([BLOCK_LANES], float("-inf"), tl.float32)
    for split in range(0, num_splits):
        place = maxima + lane * num_splits + split
        largest = tl.maximum(largest, tl.load(place, mask=active, other=0.0))
    total = tl.zeros([BLOCK_LANES], tl.float32)
    mix = tl.zeros([BLOCK_LANES, BLOCK_SIZE], tl.float32)
    for split in range(0, num_splits):
        place = lane * num_splits + split
        maximum = tl.load(maxima + place, mask=active, other=0.0)
        weight = tl.exp2(maximum - largest)
        total += weight * tl.load(sums + place, mask=active, other=1.0)
        was_read = (active & (maximum > float("-inf")))[:, None] & (column < BLOCK_SIZE)
        run = tl.load(mixed + place[:, None] * BLOCK_SIZE + column, mask=was_read, other=0.0)
        mix += weight[:, None] * run
    # Adding 0 makes one zero of two: a block of zeros may have turned -0 into 0, or not.
    result = narrow(mix / total[:, None] + 0.0, out.dtype.element_ty)
    tl.store(out + lane[:, None] * SIZE + column, result, mask=active[:, None] & (column < SIZE))


def prepare(
    num_rows: int,
    start_position: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    first_position: int = 0,
    window: int | None = None,
) -> AttentionContext:
    """A context whose position lies on the device, sent there as an argument of a launch."""
    del dtype
    check_positions(num_rows, start_position, first_position, window)
    return AttentionContext(
        num_rows=num_rows,
        start_position=start_position,
        first_position=first_position,
        window=window,
        position=torch.full((1,), start_position, dtype=torch.int64, device=device),
    )


def prepare_at(
    position: torch.Tensor, *, num_positions: int, window: int | None = None
) -> AttentionContext:
    """One row, over all ``num_positions`` of a cache, at a ``position`` [1] below that number."""
    check_positions(1, num_positions - 1, 0, window)
    return AttentionContext(
        num_rows=1,
        start_position=num_positions - 1,
        first_position=0,
        window=window,
        position=position,
    )


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    context: AttentionContext,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attend q [R, H, D] over k, v [T, K, D]; returns [R, H * D]."""
    return _attend(q, k, v, None, context, scale, softcap)


def paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    context: AttentionContext,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """As :func:`attend` through a slot table [T] over caches [S, K, D], without gathering them."""
    return _attend(q, k_cache, v_cache, slots, context, scale, softcap)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor | None,
    context: AttentionContext,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    require_device(OP, q, k, v)
    assert context.position is not None
    rows, heads, size = q.shape
    sizes = ATTENTION[q.dtype]
    require(size <= max(sizes), OP, f"a head size of at most {max(sizes)}", size)
    (q, align), (k, _), (v, _) = placed_by_size(q), placed_by_size(k), placed_by_size(v)
    out = torch.empty((rows, heads * size), dtype=q.dtype, device=q.device)
    constants = {
        "SIZE": size,
        "ALIGN": align,
        "HAS_SLOTS": slots is not None,
        "HAS_CAP": softcap is not None,
        "BLOCK_SIZE": padded(size),
    }
    table = (k, 0) if slots is None else (slots, slots.stride(0))
    done = 0
    while done < rows:
        last = context.start_position + rows - 1
        count, num_splits = _launch_rows(last, rows - done, heads, size, context.window)
        run = (done, context.first_position, context.window or _NO_WINDOW, num_splits)
        chunk = slice(done, done + count)
        tensors = (q[chunk], k, v, *table, context.position)
        _launch(tensors, out[chunk], (scale, softcap or 0.0), run, constants)
        done += count
    return out


def _launch_rows(
    last: int, rows: int, heads: int, size: int, window: int | None
) -> tuple[int, int]:
    """How many of ``rows`` up to position ``last`` fit the workspace, and how many runs at most
    they read: wherever they begin, so that it depends on no position that a device holds."""
    num_splits = _num_runs(last, rows, window)
    row_bytes = heads * num_splits * (padded(size) + 2) * 4
    count = min(rows, max(1, configurations.ATTENTION_WORKSPACE_BYTES // row_bytes))
    return count, _num_runs(last, count, window)


def _num_runs(last: int, rows: int, window: int | None) -> int:
    num_splits = last // SPLIT_POSITIONS + 1
    if window is None:
        return num_splits
    # So many runs at most does a stretch of window + rows - 1 positions touch.
    return min(num_splits, (window + rows - 1 + SPLIT_POSITIONS - 2) // SPLIT_POSITIONS + 1)


def _launch(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor],
    out: torch.Tensor,
    scales: tuple[float, float],
    run: tuple[int, int, int, int],
    constants: dict[str, Any],
) -> None:
    q, k, v, slots, slots_stride, position = tensors
    rows, heads, _ = q.shape
    num_splits = run[-1]
    configuration = ATTENTION[q.dtype][constants["BLOCK_SIZE"]]
    lanes = configuration.blocks["BLOCK_LANES"]
    group = heads // k.shape[1]
    tile_group = max(g for g in range(1, min(group, lanes) + 1) if group % g == 0)
    per_split = (rows, heads, num_splits)
    maxima, sums = torch.empty((2, *per_split), device=q.device).unbind(0)
    mixed = torch.empty((*per_split, constants["BLOCK_SIZE"]), device=q.device)
    tiles = -(-rows // (lanes // tile_group))
    attend_kernel[(tiles, heads // tile_group, num_splits)](
        q,
        k,
        v,
        slots,
        maxima,
        sums,
        mixed,
        *scales,
        rows,
        heads,
        position,
        *run,
        slots_stride,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        GROUP=group,
        TILE_GROUP=tile_group,
        SPLIT=SPLIT_POSITIONS,
        **constants,
        **configuration.blocks,
        num_warps=configuration.num_warps,
        num_stages=configuration.num_stages,
    )
    join_kernel[(-(-rows * heads // ATTENTION_JOIN.blocks["BLOCK_LANES"]),)](
        maxima,
        sums,
        mixed,
        out,
        rows * heads,
        num_splits,
        SIZE=constants["SIZE"],
        BLOCK_SIZE=constants["BLOCK_SIZE"],
        **ATTENTION_JOIN.blocks,
        num_warps=ATTENTION_JOIN.num_warps,
        num_stages=ATTENTION_JOIN.num_stages,
    )


def variants() -> Iterator[Variant]:
    """Every dtype and padded head size, through slots, with and without a cap; and the join."""
    for dtype in FLOATS:
        name = type_name(dtype)
        floats = "maxima:fp32 sums:fp32 mixed:fp32"
        for size, configuration in ATTENTION[dtype].items():
            sizes = {"SIZE": size, "BLOCK_SIZE": size}
            for cap in (False, True):
                yield variant(
                    f"{name} {size}{' cap' if cap else ''}",
                    attend_kernel,
                    configuration,
                    f"q:{name} k:{name} v:{name} slots:i64 position_of_first:i64 {floats}",
                    GROUP=4,
                    TILE_GROUP=4,
                    ALIGN=WIDE_BYTES,
                    HAS_SLOTS=True,
                    HAS_CAP=cap,
                    SPLIT=SPLIT_POSITIONS,
                    **sizes,
                )
            pointers = f"out:{name} {floats}"
            yield variant(f"{name} {size} join", join_kernel, ATTENTION_JOIN, pointers, **sizes)

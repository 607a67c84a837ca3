"""Keys and values through a slot table in Triton: one program per row and 8 heads.

R rows, T positions, K KV heads, D head size, S slots.

Bitwise: equals the oracle; copies have one result.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.configurations import KV_COPY, padded
from kernels.device_code import (
    FLOATS,
    WIDE_BYTES,
    Variant,
    alignment,
    one_binary,
    require_device,
    type_name,
    variant,
    with_dense_rows,
)
from kernels.kernel_sets import require

OP = "kv_cache"


@triton.jit
def _copy(
    source,
    target,
    source_head,
    target_head,
    num_heads,
    SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Copy one block of heads of one row; ``source`` and ``target`` point at the row."""
    head = tl.program_id(1).to(tl.int64) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    column = tl.arange(0, BLOCK_SIZE)[None, :]
    inside = (head < num_heads) & (column < SIZE)
    origin = tl.multiple_of(source + head * source_head, [ALIGN, ALIGN]) + column
    place = tl.multiple_of(target + head * target_head, [ALIGN, ALIGN]) + column
    tl.store(place, tl.load(origin, mask=inside), mask=inside)


@one_binary
def store_kernel(
    k_rows,
    v_rows,
    k_cache,
    v_cache,
    slots,
    slots_stride,
    num_heads,
    k_row,
    k_head,
    v_row,
    v_head,
    k_slot,
    k_slot_head,
    v_slot,
    v_slot_head,
    SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Write each row to its slot."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row * slots_stride)
    source, target = k_rows + row * k_row, k_cache + slot * k_slot
    _copy(source, target, k_head, k_slot_head, num_heads, SIZE, ALIGN, BLOCK_HEADS, BLOCK_SIZE)
    source, target = v_rows + row * v_row, v_cache + slot * v_slot
    _copy(source, target, v_head, v_slot_head, num_heads, SIZE, ALIGN, BLOCK_HEADS, BLOCK_SIZE)


@one_binary
def load_kernel(
    cache,
    slots,
    out,
    slots_stride,
    num_heads,
    slot_stride,
    head_stride,
    SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Read each position from its slot."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row * slots_stride)
    source, target = cache + slot * slot_stride, out + row * num_heads * SIZE
    _copy(source, target, head_stride, SIZE, num_heads, SIZE, ALIGN, BLOCK_HEADS, BLOCK_SIZE)


def store(
    k_rows: torch.Tensor,
    v_rows: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write [R, K, D] rows to ``slots`` [R] of caches [S, K, D]; no slot may be named twice."""
    require_device(OP, k_rows, v_rows, k_cache, v_cache, slots)
    if k_rows.numel() == 0:
        return
    k_rows, v_rows = with_dense_rows(k_rows), with_dense_rows(v_rows)
    for cache in (k_cache, v_cache):
        dense = cache.stride(-1) == 1 or cache.shape[-1] == 1
        require(dense, OP, "caches with dense heads", cache.stride())
    rows, heads, size = k_rows.shape
    store_kernel[_grid(rows, heads)](
        k_rows,
        v_rows,
        k_cache,
        v_cache,
        slots,
        slots.stride(0),
        heads,
        *k_rows.stride()[:2],
        *v_rows.stride()[:2],
        *k_cache.stride()[:2],
        *v_cache.stride()[:2],
        SIZE=size,
        ALIGN=alignment(k_rows, v_rows, k_cache, v_cache, size=size),
        BLOCK_SIZE=padded(size),
        **KV_COPY.blocks,
        num_warps=KV_COPY.num_warps,
        num_stages=KV_COPY.num_stages,
    )


def load(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows ``slots`` [T] of ``cache`` [S, K, D], copied to [T, K, D]."""
    require_device(OP, cache, slots)
    cache = with_dense_rows(cache)
    rows, (heads, size) = slots.shape[0], cache.shape[1:]
    out = torch.empty((rows, heads, size), dtype=cache.dtype, device=cache.device)
    if out.numel() == 0:
        return out
    load_kernel[_grid(rows, heads)](
        cache,
        slots,
        out,
        slots.stride(0),
        heads,
        *cache.stride()[:2],
        SIZE=size,
        ALIGN=alignment(cache, size=size),
        BLOCK_SIZE=padded(size),
        **KV_COPY.blocks,
        num_warps=KV_COPY.num_warps,
        num_stages=KV_COPY.num_stages,
    )
    return out


def _grid(rows: int, heads: int) -> tuple[int, int]:
    return rows, -(-heads // KV_COPY.blocks["BLOCK_HEADS"])


def variants() -> Iterator[Variant]:
    """Every power of two of the head size; others differ in their masks."""
    for dtype in FLOATS:
        name = type_name(dtype)
        caches = f"k_rows:{name} v_rows:{name} k_cache:{name} v_cache:{name}"
        for size in (64, 128, 256, 512):
            sizes = {"SIZE": size, "BLOCK_SIZE": size, "ALIGN": WIDE_BYTES}
            pointers = f"{caches} slots:i64"
            yield variant(f"{name} {size} store", store_kernel, KV_COPY, pointers, **sizes)
            pointers = f"cache:{name} out:{name} slots:i64"
            yield variant(f"{name} {size} load", load_kernel, KV_COPY, pointers, **sizes)

"""Rotary position embedding in Triton: one program per row and 8 heads.

R rows, N heads, D head size.

Bitwise: repeats; a row's bits depend on its heads and angles alone: every element is two products
and one sum, rounded once.
"""

from collections.abc import Iterator

import torch
import triton.language as tl

from kernels.configurations import ROPE, padded
from kernels.device_code import (
    FLOATS,
    WIDE_BYTES,
    Variant,
    alignment,
    narrow,
    one_binary,
    require_device,
    type_name,
    variant,
    widen,
    with_dense_rows,
)

OP = "rope"
_SHIPPED_HALVES = (16, 32, 64, 128, 256)


@one_binary
def rope_kernel(
    x,
    cos,
    sin,
    out,
    num_heads,
    x_row,
    x_head,
    cos_row,
    sin_row,
    HALF: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Pair elements i and i + HALF of each head; ``sin`` points at its positive half."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    column = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (head < num_heads) & (column < HALF)
    angle = tl.arange(0, BLOCK_HALF)
    cosine = tl.load(cos + row * cos_row + angle, mask=angle < HALF, other=0.0)[None, :]
    sine = tl.load(sin + row * sin_row + angle, mask=angle < HALF, other=0.0)[None, :]
    source = tl.multiple_of(x + row * x_row + head * x_head, [1, ALIGN]) + column
    first = widen(tl.load(source, mask=inside, other=0.0))
    second = widen(tl.load(source + HALF, mask=inside, other=0.0))
    target = out + (row * num_heads + head) * 2 * HALF
    target = tl.multiple_of(target, [1, ALIGN]) + column
    dtype: tl.constexpr = out.dtype.element_ty
    tl.store(target, narrow(first * cosine - second * sine, dtype), mask=inside)
    tl.store(target + HALF, narrow(second * cosine + first * sine, dtype), mask=inside)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [R, N, D] by cos [R, 1, 1, D/2] and signed sin [R, 1, 2, D/2]; float32 inside."""
    require_device(OP, x, cos, sin)
    rows, heads, size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    x, cos, sin = with_dense_rows(x), with_dense_rows(cos), with_dense_rows(sin)
    rope_kernel[(rows, -(-heads // ROPE.blocks["BLOCK_HEADS"]))](
        x,
        cos,
        sin[:, :, 1],
        out,
        heads,
        *x.stride()[:2],
        cos.stride(0),
        sin.stride(0),
        HALF=size // 2,
        ALIGN=alignment(x, size=size // 2),
        BLOCK_HALF=padded(size // 2),
        **ROPE.blocks,
        num_warps=ROPE.num_warps,
        num_stages=ROPE.num_stages,
    )
    return out


def variants() -> Iterator[Variant]:
    """Every power of two of the head size; others differ in their masks."""
    for dtype in FLOATS:
        name = type_name(dtype)
        for half in _SHIPPED_HALVES:
            yield variant(
                f"{name} {2 * half}",
                rope_kernel,
                ROPE,
                f"x:{name} cos:fp32 sin:fp32 out:{name}",
                HALF=half,
                BLOCK_HALF=half,
                ALIGN=WIDE_BYTES,
            )

"""Causal grouped-query attention in C++.

A row's bits depend on its position, its window and what it reads alone.
Shapes: R rows, T positions, H query heads, K KV heads, D head size, S slots.
"""

import torch

from kernels.attention.context import AttentionContext
from kernels.kernel_sets import require
from kernels.native.calls import Kind, Op, Operand, operation
from kernels.native.library import run

BLOCK_POSITIONS = 64
"""Positions whose weighted values are summed before they are joined with those before."""
MOST_HEAD_SIZE = 1024


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
    """Attend q [R, H, D] through slots [T] over caches [S, K, D]; returns [R, H * D]."""
    return _attend(q, k_cache, v_cache, slots.contiguous(), context, scale, softcap)


def num_part_floats(rows: int, heads: int, size: int, end: int, window: int | None = None) -> int:
    """Room that a step of ``rows`` rows needs which ends before position ``end``."""
    if rows > 1:
        return rows * heads * (size + 2)
    longest = end if window is None else min(window, end)
    return -(-longest // BLOCK_POSITIONS) * heads * (size + 2)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor | None,
    context: AttentionContext,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    rows, heads, size = q.shape
    if q.stride()[1:] != (size, 1):
        q = q.contiguous()
    if k.stride(2) != 1 or k.stride() != v.stride():
        k, v = k.contiguous(), v.contiguous()
    out = torch.empty((rows, heads * size), dtype=q.dtype)
    end = context.start_position + rows
    parts = torch.empty(num_part_floats(rows, heads, size, end, context.window))
    op = describe(
        q,
        k,
        v,
        out,
        parts,
        heads=heads,
        row_elements=q.stride(0),
        scale=scale,
        softcap=softcap,
        slots=slots,
        first_position=context.first_position,
        window=context.window,
    )
    run(op, 1, rows, start_position=context.start_position)
    return out


def describe(
    q: Operand,
    k: torch.Tensor,
    v: torch.Tensor,
    out: Operand,
    parts: Operand,
    *,
    heads: int,
    row_elements: int,
    scale: float,
    softcap: float | None = None,
    slots: torch.Tensor | None = None,
    first_position: int = 0,
    window: int | None = None,
) -> Op:
    """The operation over the positions from ``first_position`` to the step's last row.

    Args:
        q: [R, H, D], heads side by side, rows ``row_elements`` apart.
        k: [T, K, D], or [S, K, D] with ``slots``; elements of a head side by side.
        v: The same, with equal strides.
        out: [R, H * D].
        parts: Room for :func:`num_part_floats` float32.
        heads: H.
        row_elements: From row to row of ``q``.
        scale: Factor of the scores.
        softcap: Bounds the scores; ``None``: unbounded.
        slots: [T] int64; ``None``: the slots are the positions.
        first_position: Of the first key, or of the first slot.
        window: A row reads so many positions at most; ``None``: all before it.

    Raises:
        ValueError: For heads that are too large.
    """
    size, width = k.shape[2], k.element_size()
    require(size <= MOST_HEAD_SIZE, "attention", f"head_dim up to {MOST_HEAD_SIZE}", size)
    return operation(
        Kind.ATTENTION,
        k.dtype,
        sizes=(
            heads,
            k.shape[1],
            size,
            row_elements,
            k.stride(0) * width,
            k.stride(1) * width,
            first_position,
            window or 0,
        ),
        operands=(q, k, v, slots, out, parts),
        reals=(scale, softcap or 0.0),
    )

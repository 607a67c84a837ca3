"""Causal grouped-query attention on the CPU.

Shapes: R rows, T positions, H query heads, K KV heads, G = H / K, D head size.
"""

import torch
from torch.nn import functional

from kernels.attention.context import AttentionContext, check_positions


def prepare(
    num_rows: int,
    start_position: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    first_position: int = 0,
    window: int | None = None,
) -> AttentionContext:
    """A context with the mask of many rows; a single row reads without one."""
    check_positions(num_rows, start_position, first_position, window)
    mask = None
    if num_rows > 1:
        base = 0 if window is None else max(0, start_position - window + 1)
        shape = (num_rows, start_position + num_rows - base)
        hidden = torch.full(shape, float("-inf"), dtype=dtype, device=device)
        mask = hidden.triu(start_position - base + 1)
        if window is not None:
            mask += hidden.tril_(start_position - base - window)
    return AttentionContext(
        num_rows=num_rows,
        start_position=start_position,
        first_position=first_position,
        window=window,
        mask=mask,
    )


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    context: AttentionContext,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attend q [R, H, D] over k, v [T, K, D]; returns [R, H * D].

    The G query heads of a KV head become rows of one product, so keys and values are read once
    and never repeated in memory. Scores and sums are float32.

    Raises:
        ValueError: When the context of many rows has no mask.
    """
    rows, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    group = num_heads // num_kv_heads
    unread = context.read_by(0)[0]
    if unread:
        k, v = k[unread:], v[unread:]
    if rows == 1:
        return one_row(q, k, v, scale, softcap)
    if context.mask is None:
        raise ValueError("attention: expected a context prepared by this kernel set, got no mask")
    grouped = q.reshape(rows, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    mixed = _mix(
        grouped.reshape(1, num_kv_heads, group * rows, head_dim),
        k,
        v,
        context.mask.repeat(group, 1),
        scale,
        softcap,
    )
    mixed = mixed.view(num_kv_heads, group, rows, head_dim).permute(2, 0, 1, 3)
    return mixed.reshape(rows, num_heads * head_dim)


def one_row(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float | None
) -> torch.Tensor:
    """Attend q [1, H, D] over all of k, v [T, K, D]; returns [1, H * D]."""
    _, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    grouped = q.reshape(1, num_kv_heads, num_heads // num_kv_heads, head_dim)
    return _mix(grouped, k, v, None, scale, softcap).reshape(1, num_heads * head_dim)


def _mix(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attend q [1, K, N, D] over k, v [T, K, D] under mask [N, T]; returns [1, K, N, D]."""
    keys, values = k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0)
    if softcap is None:
        return functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)
    scores = (q.float() @ keys.float().mT).mul_(scale)
    scores.div_(softcap).tanh_().mul_(softcap)
    if mask is not None:
        scores += mask
    return (scores.softmax(dim=-1) @ values.float()).to(q.dtype)

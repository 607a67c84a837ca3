"""Causal grouped-query attention on the CPU.

Shapes: R rows, T positions, H query heads, K KV heads, G = H / K, D head size.
"""

import torch
from torch.nn import functional


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Attend q [R, H, D] over k, v [T, K, D]; mask [R, T] or ``None``. Returns [R, H * D].

    The G query heads of a KV head become rows of one product, so keys and values are read once
    and never repeated in memory. Scores and sums are float32.
    """
    rows, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    group = num_heads // num_kv_heads
    keys = k.transpose(0, 1).unsqueeze(0)
    values = v.transpose(0, 1).unsqueeze(0)
    if rows == 1 and mask is None:
        grouped = q.reshape(1, num_kv_heads, group, head_dim)
        mixed = functional.scaled_dot_product_attention(grouped, keys, values)
        return mixed.reshape(1, num_heads * head_dim)
    grouped = q.reshape(rows, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    mixed = functional.scaled_dot_product_attention(
        grouped.reshape(1, num_kv_heads, group * rows, head_dim),
        keys,
        values,
        attn_mask=None if mask is None else mask.repeat(group, 1),
    )
    mixed = mixed.view(num_kv_heads, group, rows, head_dim).permute(2, 0, 1, 3)
    return mixed.reshape(rows, num_heads * head_dim)

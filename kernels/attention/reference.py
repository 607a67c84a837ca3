"""Causal grouped-query attention over a contiguous cache prefix, the oracle.

Shapes: R rows, T positions, H query heads, K KV heads, D head size. Query head h reads KV head
h // (H / K).
"""

import torch


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Softmax(q k^T / sqrt(D) + mask) v in float64, rounded once.

    Args:
        q: [R, H, D].
        k: [T, K, D], the cache prefix with this step's rows written.
        v: [T, K, D].
        mask: [R, T], added to the scores; ``None`` lets every row read every position.

    Returns:
        [R, H * D] in the dtype of ``q``.
    """
    rows, num_heads, head_dim = q.shape
    group = num_heads // k.shape[1]
    keys = k.double().repeat_interleave(group, dim=1)
    values = v.double().repeat_interleave(group, dim=1)
    scores = torch.einsum("rhd,thd->hrt", q.double(), keys) / head_dim**0.5
    if mask is not None:
        scores = scores + mask.double()
    mixed = torch.einsum("hrt,thd->rhd", scores.softmax(dim=-1), values)
    return mixed.reshape(rows, num_heads * head_dim).to(q.dtype)

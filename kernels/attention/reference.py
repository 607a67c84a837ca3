"""Causal grouped-query attention, the oracle.

Shapes: R rows, T positions, H query heads, K KV heads, D head size. Query head h reads KV head
h // (H / K).
"""

import torch

from kernels.attention.context import AttentionContext


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    context: AttentionContext,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Softmax(cap(q k^T scale)) v over the positions each row reads, in float64, rounded once.

    Args:
        q: [R, H, D].
        k: [T, K, D], this step's rows included.
        v: [T, K, D].
        context: Which of the T positions each row reads.
        scale: Of the scores.
        softcap: Bounds the scores to c tanh(score / c).

    Returns:
        [R, H * D] in the dtype of ``q``.
    """
    rows, num_heads, head_dim = q.shape
    group = num_heads // k.shape[1]
    keys = k.double().repeat_interleave(group, dim=1)
    values = v.double().repeat_interleave(group, dim=1)
    scores = torch.einsum("rhd,thd->hrt", q.double(), keys) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    for row in range(rows):
        first, end = context.read_by(row)
        scores[:, row, :first] = scores[:, row, end:] = float("-inf")
    mixed = torch.einsum("hrt,thd->rhd", scores.softmax(dim=-1), values)
    return mixed.reshape(rows, num_heads * head_dim).to(q.dtype)

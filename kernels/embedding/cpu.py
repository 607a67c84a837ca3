"""Embedding lookup on the CPU. Shapes: R rows, V vocabulary size, H hidden size."""

import torch


def embedding(
    token_ids: torch.Tensor, weight: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Rows ``token_ids`` [R] of ``weight`` [V, H], times ``scale``, as a new [R, H]."""
    rows = weight.index_select(0, token_ids)
    if scale is None:
        return rows
    return rows.mul_(torch.tensor(scale, dtype=torch.float32).to(rows.dtype))

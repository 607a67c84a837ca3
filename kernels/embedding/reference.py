"""Embedding lookup, the oracle. Shapes: R rows, V vocabulary size, H hidden size."""

import torch


def embedding(
    token_ids: torch.Tensor, weight: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Rows ``token_ids`` [R] of ``weight`` [V, H], copied one by one to [R, H].

    Times ``scale`` rounded to the dtype of ``weight``; the product is rounded once.
    """
    rows = torch.stack([weight[int(token)] for token in token_ids])
    if scale is None:
        return rows
    factor = torch.full((), scale, dtype=torch.float32).to(weight.dtype).double()
    return (rows.double() * factor).to(weight.dtype)

"""Embedding lookup, the oracle. Shapes: R rows, V vocabulary size, H hidden size."""

import torch


def embedding(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows ``token_ids`` [R] of ``weight`` [V, H], copied one by one to [R, H]."""
    return torch.stack([weight[int(token)] for token in token_ids])

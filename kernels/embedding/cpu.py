"""Embedding lookup on the CPU. Shapes: R rows, V vocabulary size, H hidden size."""

import torch


def embedding(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows ``token_ids`` [R] of ``weight`` [V, H] as a new [R, H]."""
    return weight.index_select(0, token_ids)

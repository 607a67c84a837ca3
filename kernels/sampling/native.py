"""Greedy choice of a token in C++. Shape: V vocabulary size."""

import math

import torch

from kernels.native.calls import Kind, operation
from kernels.native.library import run


def greedy(logits: torch.Tensor) -> tuple[int, float]:
    """The lowest index of the largest of [V], and its margin over the second largest."""
    wide = logits.float().contiguous()
    found = torch.empty(3, dtype=torch.float64)
    op = operation(Kind.GREEDY, torch.float32, sizes=(wide.shape[0],), operands=(wide, found))
    run(op, 1, 1)
    token, best, second = found.tolist()
    if math.isnan(best) or best != second:
        return int(token), best - second
    return int(token), math.inf if wide.shape[0] == 1 else 0.0

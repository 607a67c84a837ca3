"""Greedy choice of a token on the CPU. Shape: V vocabulary size."""

import math

import torch


def greedy(logits: torch.Tensor) -> tuple[int, float]:
    """The lowest index of the largest of [V], and its margin over the second largest."""
    token = int(logits.argmax())
    if logits.shape[0] == 1:
        return token, math.nan if math.isnan(float(logits[0])) else math.inf
    best, second = logits.topk(2).values.tolist()
    return token, best - second if best != second else 0.0

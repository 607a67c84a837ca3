"""Greedy choice of a token, the oracle. Shape: V vocabulary size."""

import math

import torch


def greedy(logits: torch.Tensor) -> tuple[int, float]:
    """The lowest index of the largest of [V], and how far it leads the second largest.

    Returns:
        The token and the margin: 0 on a tie, infinite for a single entry. A NaN counts as
        larger than every number, and its margin is NaN.
    """
    token, best, second = -1, -math.inf, -math.inf
    for index, value in enumerate(logits.double().tolist()):
        if math.isnan(value):
            return index, math.nan
        if token < 0 or value > best:
            token, best, second = index, value, best
        elif value > second:
            second = value
    return token, best - second if best != second else 0.0

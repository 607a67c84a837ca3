"""Greedy sampling. Knows one row of logits."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The chosen token and by how much its logit leads."""

    token: int
    margin: float
    """Top logit minus the second; 0 for equals."""


def greedy(logits: torch.Tensor) -> Choice:
    """Choose the largest of ``logits`` [V]; the lowest index among equals."""
    top = torch.topk(logits, min(2, logits.numel())).values
    margin = float(top[0] - top[-1])
    return Choice(token=int(torch.argmax(logits)), margin=margin)

"""Causal depthwise convolution on the CPU. Shapes: R rows, C channels, W taps."""

import torch
from torch.nn import functional

from kernels.row_by_row import each_row


def causal_conv(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """``silu`` of the convolution of [R, C] by [C, W] after state [C, W - 1], updated in place.

    Float32 inside: the products of the taps are added oldest first, one rounding after silu.
    """
    return functional.silu(_convolve(x, weight, state)).to(x.dtype)


def causal_conv_invariant(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """As :func:`causal_conv`, silu of each row alone: sums and products are alike anywhere."""
    return each_row(functional.silu, _convolve(x, weight, state)).to(x.dtype)


def _convolve(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    rows, taps = x.shape[0], weight.shape[1]
    window = torch.cat([state.T, x])
    wide, by_tap = window.float(), weight.float().T
    sums = wide[:rows] * by_tap[0]
    for tap in range(1, taps):
        sums += wide[tap : tap + rows] * by_tap[tap]
    state.copy_(window[rows:].T)
    return sums

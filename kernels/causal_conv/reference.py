"""Causal depthwise convolution with a carried state, the oracle.

Shapes: R rows, C channels, W taps.
"""

import torch


def causal_conv(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """``silu(sum_j weight[c, j] * input[row - W + 1 + j, c])`` in float64, rounded once.

    Args:
        x: [R, C], raw inputs.
        weight: [C, W], the last tap for the row itself.
        state: [C, W - 1], the raw inputs before ``x``, oldest first; overwritten by the last ones.

    Returns:
        [R, C] in the dtype of ``x``.
    """
    window = torch.cat([state.T, x])
    rows, taps = x.shape[0], weight.shape[1]
    sums = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for tap in range(taps):
        sums += window[tap : tap + rows].double() * weight[:, tap].double()
    state.copy_(window[rows:].T)
    return (sums * torch.sigmoid(sums)).to(x.dtype)

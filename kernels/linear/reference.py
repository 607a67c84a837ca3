"""Linear projection, the oracle. Shapes: R rows, C columns, O output rows of the weight."""

import torch


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x weight^T + bias`` of [R, C] and [O, C] in float64, rounded once to [R, O]."""
    product = x.double() @ weight.double().T
    if bias is not None:
        product = product + bias.double()
    return product.to(x.dtype)

"""Gated activations on the CPU, rounded after the activation and after the product.

Shapes: R rows, I intermediate size.
"""

import torch
from torch.nn import functional


def silu_gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of [R, 2 I], gate first, to [R, I]."""
    size = gate_up.shape[1] // 2
    return functional.silu(gate_up[:, :size]).mul_(gate_up[:, size:])


def gelu_tanh_gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``gelu_tanh(gate) * up`` of [R, 2 I], gate first, to [R, I]."""
    size = gate_up.shape[1] // 2
    return functional.gelu(gate_up[:, :size], approximate="tanh").mul_(gate_up[:, size:])

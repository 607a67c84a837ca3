"""SiLU-gated activation on the CPU. Shapes: R rows, I intermediate size."""

import torch
from torch.nn import functional


def silu_gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of [R, 2 I] (gate first): rounded after silu and after the product."""
    size = gate_up.shape[1] // 2
    return functional.silu(gate_up[:, :size]).mul_(gate_up[:, size:])

"""Rotary tables of the family: a part of each head turns, the rest keeps its direction.

Computed in float64 and rounded once to float32. Shapes: P positions, r rotated elements of a head.
"""

import torch

from harness.adapters.qwen3_5_moe.config import QwenConfig


def rope_tables(config: QwenConfig, num_positions: int) -> dict[str, torch.Tensor]:
    """``cos`` and ``sin`` [P, r/2] float32 of positions 0 to ``num_positions`` - 1."""
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float64) / config.rotary_dim
    positions = torch.arange(num_positions, dtype=torch.float64)
    angles = positions[:, None] * config.rope_theta**-exponents
    return {"cos": angles.cos().float(), "sin": angles.sin().float()}

"""Rotary tables of both kinds of layers: whole, stretched, or of the first pairs only.

Computed in float64 and rounded once to float32. A pair that does not rotate has the angle 0, so it
is data and not a case of the op. Shapes: P positions, D head size.
"""

import torch

from harness.adapters.gemma.config import AttentionKind, GemmaConfig
from harness.plan.records import ModelRange


def rope_tables(
    config: GemmaConfig, spec: ModelRange, num_positions: int
) -> dict[str, torch.Tensor]:
    """``KIND.cos`` and ``KIND.sin`` [P, D/2] float32 of each kind of layer in the range."""
    positions = torch.arange(num_positions, dtype=torch.float64)
    tables = {}
    for kind in config.kinds_in(spec.start_layer, spec.end_layer):
        angles = positions[:, None] * frequencies(config.kind(kind))
        tables[f"{kind}.cos"] = angles.cos().float()
        tables[f"{kind}.sin"] = angles.sin().float()
    return tables


def frequencies(kind: AttentionKind) -> torch.Tensor:
    """Radians per position [D/2], float64: ``theta^(-2i/D) / factor``, 0 for what stays."""
    pairs = torch.arange(kind.head_dim // 2, dtype=torch.float64)
    base = kind.rope_theta ** (-2 * pairs / kind.head_dim) / kind.rope_factor
    return torch.where(pairs < kind.rope_pairs, base, 0.0)

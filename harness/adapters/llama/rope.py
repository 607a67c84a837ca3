"""Rotary frequencies and tables of the family, for every kind of scaling it supports.

Computed in float64 and rounded once to float32. Shapes: P positions, D head size.
"""

import math

import torch

from harness.adapters.llama.config import LlamaConfig, RopeScaling


def rope_tables(config: LlamaConfig, num_positions: int) -> dict[str, torch.Tensor]:
    """``cos`` and ``sin`` [P, D/2] float32 of positions 0 to ``num_positions`` - 1."""
    positions = torch.arange(num_positions, dtype=torch.float64)
    angles = positions[:, None] * _frequencies(config, num_positions)
    scale = config.rope_scaling.attention_factor or 1.0
    return {"cos": (angles.cos() * scale).float(), "sin": (angles.sin() * scale).float()}


def _frequencies(config: LlamaConfig, num_positions: int) -> torch.Tensor:
    """Radians per position: [D/2], or [P, D/2] where they depend on the position."""
    scaling = config.rope_scaling
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    base = config.rope_theta**-exponents
    match scaling.kind:
        case "linear":
            return base / _given(scaling.factor)
        case "dynamic":
            return _dynamic(config, exponents, num_positions)
        case "llama3":
            return _llama3(base, scaling)
        case "yarn":
            return _yarn(config, base)
    return base


def _given(value: float | None) -> float:
    assert value is not None
    return value


def _dynamic(config: LlamaConfig, exponents: torch.Tensor, num_positions: int) -> torch.Tensor:
    # Beyond the trained length a row uses the frequencies of its own length, as a step by step
    # decode does; up to it these are the default ones.
    factor, trained = _given(config.rope_scaling.factor), config.max_position_embeddings
    lengths = torch.arange(1, num_positions + 1, dtype=torch.float64).clamp_(min=trained)
    stretch = factor * lengths / trained - (factor - 1)
    theta = config.rope_theta * stretch ** (config.head_dim / (config.head_dim - 2))
    return theta[:, None] ** -exponents


def _llama3(base: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    factor, low = _given(scaling.factor), _given(scaling.low_freq_factor)
    high = _given(scaling.high_freq_factor)
    # Full turns within the trained window: few are slowed down, many are kept, between is mixed.
    turns = _given(scaling.original_max_positions) * base / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * base / factor + kept * base


def _yarn(config: LlamaConfig, base: torch.Tensor) -> torch.Tensor:
    scaling, size = config.rope_scaling, config.head_dim
    window = _given(scaling.original_max_positions)

    def dimension(turns: float) -> float:
        return size * math.log(window / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low, high = dimension(_given(scaling.beta_fast)), dimension(_given(scaling.beta_slow))
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001
    ramp = (torch.arange(size // 2, dtype=torch.float64) - low) / (high - low)
    slowed = ramp.clamp(0, 1)
    return base / _given(scaling.factor) * slowed + base * (1 - slowed)

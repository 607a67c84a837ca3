"""Facts about E4M3 (``float8_e4m3fn``) bits that several ops need. Multiplies nothing."""

import torch

MAX_VALUE = 448.0
"""Largest finite value; there are no infinities, and 0x7f and 0xff are NaN."""


def has_nan(values: torch.Tensor) -> bool:
    """Whether an E4M3 tensor holds a NaN code; for the check at load, before any product."""
    return bool((values.view(torch.uint8) & 0x7F).eq_(0x7F).any())

"""Rounding to bfloat16 by integer arithmetic, so that no library decides a bit."""

import numpy as np
from numpy.typing import NDArray


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest even; returns the 16-bit patterns, little-endian. NaN stays a quiet NaN."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    # Sums stay below 2**32: the largest pattern that is not NaN is 0xFF800000.
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    patterns = np.where(is_nan, (bits >> 16) | 0x40, rounded)
    return patterns.astype("<u2")

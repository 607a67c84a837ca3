"""How far two tensors are apart, over the full domain, in float64.

The finite gate comes first: where anything is not finite and has not equal bits, no number is
given, since NaN compares below every limit. Pure functions of arrays.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.canonical import MAX_INTEGER
from harness.laboratory.kept import KeptTensor
from harness.plan.limits import METRICS

TOP_K = 32


def metrics(left: KeptTensor, right: KeptTensor, *, top_k: int = TOP_K) -> dict[str, Any]:
    """Compare two tensors of equal type and shape; ``left`` is the reference.

    Returns:
        ``num_elements``, ``num_different`` (by bits), ``is_finite``, and each of ``METRICS``, which
        are ``None`` behind a closed gate. ``p99_abs`` is the nearest rank: of n sorted differences
        the one numbered ceil(0.99 n). A ULP is one step between neighbouring numbers of the type.
        ``top_k_max_abs`` is the largest difference among the reference's top k.

    Raises:
        ValueError: When type or shape differ.
    """
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        raise ValueError(f"{left.dtype} {left.shape} and {right.dtype} {right.shape}")
    different = left.bits != right.bits
    finite = np.isfinite(left.values) & np.isfinite(right.values)
    found: dict[str, Any] = {
        "num_elements": len(left.values),
        "num_different": int(different.sum()),
        "is_finite": bool((finite | ~different).all()),
        **dict.fromkeys(METRICS),
    }
    if not found["is_finite"] or not len(left.values):
        return found
    with np.errstate(invalid="ignore"):
        # Equal infinities are equal: their difference is not looked at.
        gaps = np.where(different, np.abs(left.values - right.values), 0.0)
    count = min(top_k, len(gaps))
    tops = top_indices(left.values, count), top_indices(right.values, count)
    return found | {
        "max_abs": float(gaps.max()),
        "rms": float(np.sqrt(np.mean(np.square(gaps)))),
        "p99_abs": nearest_rank(gaps, 0.99),
        "max_ulp": ulp_distance(left, right)
        if left.is_float
        else min(int(gaps.max()), MAX_INTEGER),
        "top_k_max_abs": float(gaps[tops[0]].max()),
        "top_k_overlap": len(set(tops[0].tolist()) & set(tops[1].tolist())) / count,
    }


def nearest_rank(values: NDArray[np.float64], quantile: float) -> float:
    """The nearest-rank quantile: of n sorted values the one numbered ceil(q n), from 1."""
    rank = max(1, math.ceil(quantile * len(values)))
    return float(np.partition(values, rank - 1)[rank - 1])


def top_indices(values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Indices of the largest values, the lowest index first among equals."""
    order: NDArray[np.int64] = np.argsort(-values, kind="stable")
    return order[:count]


def ulp_distance(left: KeptTensor, right: KeptTensor) -> int:
    """The largest number of steps between two numbers of a floating type; both zeros are one."""
    gap = np.abs(_ordered(left) - _ordered(right))
    return min(int(gap.max()), MAX_INTEGER)


def _ordered(tensor: KeptTensor) -> NDArray[Any]:
    """Integers in the order of the numbers: sign and magnitude as two's complement.

    Of 64-bit numbers the distance can leave 64 bits, so those are Python integers.
    """
    wide = tensor.bits.astype(object if tensor.bits.dtype.itemsize == 8 else np.int64)
    least = -(1 << (8 * tensor.bits.dtype.itemsize - 1))
    return np.where(wide < 0, least - wide, wide)

"""Exact and numerical comparison of one output with its reference. Knows tensors only."""

from dataclasses import dataclass

import torch

from harness.state.digests import count_non_finite, equal_bits

_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How far an output is from its reference, over the full domain, in float64."""

    num_elements: int
    num_different: int
    """Elements whose bits differ (so equal NaNs are equal, and -0 differs from 0)."""
    max_abs: float
    max_rel: float
    num_nan: int
    num_inf: int


def compare(
    actual: torch.Tensor,
    reference: torch.Tensor,
    *,
    non_finite: tuple[int, int] | None = None,
) -> Comparison:
    """Compare two tensors of equal shape and dtype.

    Elements that are not finite on either side, and do not have equal bits, make ``max_abs`` and
    ``max_rel`` infinite, so that NaN never hides below a threshold.

    Args:
        actual: The output.
        reference: What it is compared with.
        non_finite: NaN and infinity counts of ``actual``, where they were already taken.

    Raises:
        ValueError: When shape or dtype differ.
    """
    if actual.shape != reference.shape or actual.dtype != reference.dtype:
        raise ValueError(
            f"expected {reference.dtype} {tuple(reference.shape)}, "
            f"got {actual.dtype} {tuple(actual.shape)}"
        )
    num_nan, num_inf = count_non_finite(actual) if non_finite is None else non_finite
    if equal_bits(actual, reference):
        num_different, max_abs, max_rel = 0, 0.0, 0.0
    else:
        width = _SAME_WIDTH[actual.element_size()]
        different = actual.contiguous().view(width) != reference.contiguous().view(width)
        num_different = int(different.sum())
        x, y = actual[different].double(), reference[different].double()
        gap = (x - y).abs()
        relative = gap / y.abs().clamp_min(torch.finfo(torch.float64).tiny)
        relative[gap == 0] = 0.0
        finite = torch.isfinite(x) & torch.isfinite(y)
        gap[~finite] = float("inf")
        relative[~finite] = float("inf")
        max_abs, max_rel = float(gap.max()), float(relative.max())
    return Comparison(
        num_elements=actual.numel(),
        num_different=num_different,
        max_abs=max_abs,
        max_rel=max_rel,
        num_nan=num_nan,
        num_inf=num_inf,
    )

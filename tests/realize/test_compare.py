import math

import numpy as np
import pytest
import torch

from harness.realize.compare import compare
from harness.state.digests import count_non_finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_equal_bits(dtype: torch.dtype) -> None:
    tensor = torch.randn(5, 7).to(dtype)
    result = compare(tensor, tensor.clone())
    assert (result.num_elements, result.num_different) == (35, 0)
    assert (result.max_abs, result.max_rel) == (0.0, 0.0)


def test_figures_against_numpy() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(200), torch.randn(200)
    b[:150] = a[:150]
    result = compare(a, b)
    x, y = a.numpy().astype(np.float64), b.numpy().astype(np.float64)
    assert result.num_different == int((x != y).sum())
    assert result.max_abs == np.abs(x - y).max()
    assert result.max_rel == pytest.approx(np.nanmax(np.abs(x - y) / np.abs(y)), rel=1e-15)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["actual", "reference"])
def test_non_finite_never_looks_small(bad: float, side: str) -> None:
    a, b = torch.ones(4), torch.ones(4)
    (a if side == "actual" else b)[2] = bad
    result = compare(a, b)
    assert result.num_different == 1
    assert result.max_abs == math.inf
    assert result.max_rel == math.inf
    assert result.num_nan == (side == "actual" and math.isnan(bad))
    assert result.num_inf == (side == "actual" and math.isinf(bad))


def test_signed_zeros_differ_in_bits_and_not_in_value() -> None:
    result = compare(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert result.num_different == 1
    assert (result.max_abs, result.max_rel) == (0.0, 0.0)


def test_equal_nans_are_equal_bits_and_counted() -> None:
    a = torch.tensor([math.nan, 1.0])
    result = compare(a, a.clone())
    assert (result.num_different, result.num_nan) == (0, 1)


@pytest.mark.parametrize("other", [torch.zeros(3), torch.zeros(4, dtype=torch.bfloat16)])
def test_other_geometry_is_an_error(other: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="expected"):
        compare(torch.zeros(4), other)


@pytest.mark.parametrize("place", [0, 16_383, 16_384, 40_000])
def test_one_bit_anywhere_is_found(place: int) -> None:
    a = torch.ones(40_001)
    b = a.clone()
    b[place] = math.nextafter(1.0, 2.0)
    b.view(torch.int32)[place] += 1
    assert compare(a, b).num_different == 1


@pytest.mark.parametrize("num_elements", [1, 8191, 8192, 8193, 100_001])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_one_bit_anywhere_is_seen(num_elements: int, dtype: torch.dtype) -> None:
    x = torch.randn(num_elements).to(dtype)
    assert compare(x, x.clone()).num_different == 0
    for place in (0, num_elements // 2, num_elements - 1):
        y = x.clone()
        y.view(torch.uint8)[place * dtype.itemsize] ^= 1
        assert compare(x, y).num_different == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sums_that_overflow_are_not_taken_for_infinities(dtype: torch.dtype) -> None:
    large = torch.full((20_000,), 3e38, dtype=dtype)
    assert count_non_finite(large) == (0, 0)
    large[-1], large[5] = float("-inf"), float("inf")
    assert count_non_finite(large) == (0, 2)
    large[7] = float("nan")
    assert count_non_finite(large) == (1, 2)

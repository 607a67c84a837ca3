import pytest
import torch

from kernels.linear.api import linear

TRITON = "triton/1"
# float32: sums of up to 577 products of about 1 / sqrt(C) in another order. bfloat16: float32 sums
# and one rounding of results of up to 4, or the neighbour near a tie.
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 2**-6}


def same(x, weight, bias=None) -> None:
    actual = linear(x, weight, bias, kernel_set=TRITON)
    expected = linear(x, weight, bias, kernel_set="torch-reference/1")
    assert actual.dtype == x.dtype
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE[x.dtype])


@pytest.mark.parametrize(
    ("rows", "columns", "outputs"),
    [(1, 1, 1), (3, 63, 65), (65, 64, 3), (5, 123, 5), (63, 577, 3), (1, 128, 130)],
)
def test_equals_reference(rows: int, columns: int, outputs: int, dtype: torch.dtype) -> None:
    x = torch.randn(rows, columns).to(dtype)
    weight = (torch.randn(outputs, columns) * columns**-0.5).to(dtype)
    same(x, weight)
    same(x, weight, torch.randn(outputs).to(dtype))


def test_views(dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 200).to(dtype), (torch.randn(9, 200) * 0.1).to(dtype)
    bias = torch.randn(18).to(dtype)[::2]
    same(x[:, 3:99], weight[:, 7:103], bias)
    same(x[::2, :64], weight[1:, 64:128], bias[1:])
    same(x.T[:7, :5], weight.T[:4, 1:6])


def test_nothing_gives_nothing() -> None:
    assert linear(torch.empty(0, 8), torch.zeros(3, 8), kernel_set=TRITON).shape == (0, 3)
    assert linear(torch.zeros(2, 8), torch.empty(0, 8), kernel_set=TRITON).shape == (2, 0)
    same(torch.empty(2, 0), torch.empty(3, 0), torch.ones(3))


@pytest.mark.parametrize("columns", [96, 65, pytest.param(577, marks=pytest.mark.slow)])
def test_a_row_depends_on_nothing_else(columns: int, dtype: torch.dtype, same_in_any_order) -> None:
    x, weight = torch.randn(70, columns).to(dtype), torch.randn(65, columns).to(dtype)
    together = linear(x, weight, kernel_set=TRITON)
    for size in (1, 64):
        for start in (0, 63):
            part = slice(start, min(start + size, 70))
            assert torch.equal(linear(x[part], weight, kernel_set=TRITON), together[part])
    moved = torch.empty(70, columns + 5, dtype=dtype)[:, 5:].copy_(x)
    assert torch.equal(linear(moved, weight, kernel_set=TRITON), together)
    same_in_any_order(lambda: linear(x[60:], weight, kernel_set=TRITON))

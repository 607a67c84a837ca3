import pytest
import torch

from kernels.fp8_linear.api import fp8_linear

TRITON = "triton/1"
# float32: sums of up to 578 exact products of about 1 / sqrt(C), then the scale. bfloat16: the same
# and one rounding of results of up to 4, or the neighbour near a tie.
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 2**-6}


def inputs(rows: int, outputs: int, columns: int, scales: int, dtype: torch.dtype):
    weight = torch.randn(outputs, columns).mul_(20).to(torch.float8_e4m3fn)
    scale = torch.rand(scales).add_(0.5) * columns**-0.5 / 20
    return torch.randn(rows, columns).to(dtype), weight, scale


def same(x, weight, scale) -> None:
    actual = fp8_linear(x, weight, scale, kernel_set=TRITON)
    expected = fp8_linear(x, weight, scale, kernel_set="torch-reference/1")
    assert actual.dtype == x.dtype
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE[x.dtype])


@pytest.mark.parametrize(
    ("rows", "columns", "outputs", "per_row"),
    [(1, 2, 1, False), (3, 194, 65, True), (65, 64, 3, True), (63, 144, 33, False)],
)
def test_equals_reference(
    rows: int, columns: int, outputs: int, per_row: bool, dtype: torch.dtype
) -> None:
    same(*inputs(rows, outputs, columns, outputs if per_row else 1, dtype))


@pytest.mark.slow
def test_equals_reference_for_long_rows(dtype: torch.dtype) -> None:
    same(*inputs(5, 100, 2048, 100, dtype))
    same(*inputs(5, 100, 578, 1, dtype))


def test_every_code_is_read_exactly(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    codes[[0x7F, 0xFF]] = 0
    weight = codes.view(torch.float8_e4m3fn).view(8, 32)
    picked = fp8_linear(torch.eye(32, dtype=dtype), weight, torch.ones(1), kernel_set=TRITON)
    assert torch.equal(picked.float().T, weight.float())


def test_a_nan_code_shows_in_its_output_alone(dtype: torch.dtype) -> None:
    for code in (0x7F, 0xFF):
        x, weight, scale = inputs(2, 3, 64, 3, dtype)
        weight.view(torch.uint8)[1, 9] = code
        product = fp8_linear(x, weight, scale, kernel_set=TRITON)
        assert product.isnan().tolist() == [[False, True, False]] * 2


def test_float32_rows_lose_nothing() -> None:
    """Numbers of 24 significant bits times powers of two, one at a time: each product is exact."""
    x = torch.diag((torch.rand(32) + 1) * torch.tensor([2.0, -(2.0**-100)]).repeat(16))
    codes = torch.full((1, 32), 0x40, dtype=torch.uint8)  # 2
    product = fp8_linear(x, codes.view(torch.float8_e4m3fn), torch.ones(1), kernel_set=TRITON)
    assert torch.equal(product[:, 0], 2 * x.diag())


def test_views_and_nothing(dtype: torch.dtype) -> None:
    x, weight, scale = inputs(7, 9, 64, 18, dtype)
    scale = scale[::2]
    wide = torch.zeros(14, 80, dtype=dtype)
    wide[::2, 5:69] = x
    expected = fp8_linear(x, weight, scale, kernel_set=TRITON)
    assert torch.equal(fp8_linear(wide[::2, 5:69], weight, scale, kernel_set=TRITON), expected)
    assert torch.equal(fp8_linear(x.T.contiguous().T, weight, scale, kernel_set=TRITON), expected)
    later = torch.zeros(9 * 64 + 1, dtype=torch.uint8).view(torch.float8_e4m3fn)[1:].view(9, 64)
    later.copy_(weight)
    assert torch.equal(fp8_linear(x, later, scale, kernel_set=TRITON), expected)
    assert fp8_linear(x[:0], weight, scale, kernel_set=TRITON).shape == (0, 9)
    assert fp8_linear(x, weight[:0], torch.ones(1), kernel_set=TRITON).shape == (7, 0)


@pytest.mark.parametrize("columns", [96, pytest.param(130, marks=pytest.mark.slow)])
def test_a_row_depends_on_nothing_else(columns: int, dtype: torch.dtype, same_in_any_order) -> None:
    x, weight, scale = inputs(40, 20, columns, 20, dtype)
    together = fp8_linear(x, weight, scale, kernel_set=TRITON)
    for part in (slice(0, 1), slice(31, 32), slice(5, 40)):
        assert torch.equal(fp8_linear(x[part], weight, scale, kernel_set=TRITON), together[part])
    same_in_any_order(lambda: fp8_linear(x, weight, scale, kernel_set=TRITON))

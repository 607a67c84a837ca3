import pytest
import torch

from kernels.nvfp4.api import nvfp4_linear, select_dequantize
from kernels.nvfp4.records import NvFp4Rows

TRITON, REFERENCE = "triton/1", "torch-reference/1"
SCALES = [torch.float32, torch.float16]


def random_rows(outputs: int, columns: int, scale_dtype: torch.dtype = torch.float32) -> NvFp4Rows:
    """Any codes and any finite, not negative block scales; rows that differ in scale."""
    return NvFp4Rows(
        codes=torch.randint(0, 256, (outputs, columns // 2), dtype=torch.uint8),
        block_scales=torch.rand(outputs, columns // 16).mul_(2).to(torch.float8_e4m3fn),
        row_scales=(torch.rand(outputs).add_(0.5) * columns**-0.5 / 4).to(scale_dtype),
    )


def same(x: torch.Tensor, weight: NvFp4Rows) -> None:
    actual = nvfp4_linear(x, weight, kernel_set=TRITON)
    expected = nvfp4_linear(x, weight, kernel_set=REFERENCE)
    assert actual.dtype == torch.float32
    # Float32 sums of up to 512 exact products of about 1 / sqrt(C), whatever the dtype of x.
    torch.testing.assert_close(actual, expected, rtol=3e-6, atol=4e-6)


@pytest.mark.parametrize(
    ("rows", "outputs", "columns", "scale_dtype"),
    [
        (1, 1, 16, torch.float16),
        (3, 65, 48, torch.float16),
        (65, 3, 256, torch.float32),
        (63, 33, 144, torch.float32),
    ],
)
def test_equals_reference(
    rows: int, outputs: int, columns: int, scale_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    same(torch.randn(rows, columns).to(dtype), random_rows(outputs, columns, scale_dtype))


@pytest.mark.slow
def test_equals_reference_for_a_model_s_columns(dtype: torch.dtype) -> None:
    same(torch.randn(5, 2048).to(dtype), random_rows(100, 2048))
    same(torch.randn(33, 512).to(dtype), random_rows(70, 512, torch.float16))


def every_value(outputs: int) -> NvFp4Rows:
    """Every byte with every block scale, NaN codes too, in so many rows."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    scales = codes.repeat_interleave(32).view(torch.float8_e4m3fn)
    return NvFp4Rows(
        codes=codes.repeat(256).view(outputs, -1),
        block_scales=scales.view(outputs, -1),
        row_scales=torch.rand(outputs) + 0.5,
    )


@pytest.mark.parametrize("scale_dtype", SCALES)
@pytest.mark.parametrize(("outputs", "columns"), [(1, 16), (3, 48), (2, 4112), (0, 32)])
def test_dequantized_is_the_exact_value_rounded(
    outputs: int, columns: int, scale_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    rows = random_rows(outputs, columns, scale_dtype)
    expected = select_dequantize(REFERENCE)(rows, dtype)
    assert torch.equal(select_dequantize(TRITON)(rows, dtype), expected)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)]
)
def test_every_byte_with_every_block_scale(dtype: torch.dtype) -> None:
    rows = every_value(8)
    actual = select_dequantize(TRITON)(rows, dtype)
    expected = select_dequantize(REFERENCE)(rows, dtype)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    assert int(actual.isnan().sum()) == 2 * 256 * 2


@pytest.mark.slow
def test_a_product_reads_every_value_exactly() -> None:
    rows = every_value(4096)
    picked = nvfp4_linear(torch.eye(32), rows, kernel_set=TRITON)
    expected = select_dequantize(REFERENCE)(rows, torch.float32).T
    torch.testing.assert_close(picked, expected, rtol=0, atol=0, equal_nan=True)
    assert int(picked.isnan().sum()) == 2 * 256 * 2


def test_a_nan_scale_shows_in_its_output_alone(dtype: torch.dtype) -> None:
    for code in (0x7F, 0xFF):
        rows = random_rows(3, 32)
        rows.block_scales.view(torch.uint8)[1, 1] = code
        product = nvfp4_linear(torch.randn(2, 32).to(dtype), rows, kernel_set=TRITON)
        assert product.isnan().tolist() == [[False, True, False]] * 2


def test_views_and_nothing(dtype: torch.dtype) -> None:
    x, rows = torch.randn(7, 64).to(dtype), random_rows(18, 64)
    every_second = NvFp4Rows(
        codes=rows.codes[9:], block_scales=rows.block_scales[9:], row_scales=rows.row_scales[::2]
    )
    expected = nvfp4_linear(x, every_second, kernel_set=TRITON)
    wide = torch.zeros(14, 80, dtype=dtype)
    wide[::2, 5:69] = x
    assert torch.equal(nvfp4_linear(wide[::2, 5:69], every_second, kernel_set=TRITON), expected)
    assert torch.equal(nvfp4_linear(x.T.contiguous().T, every_second, kernel_set=TRITON), expected)
    assert nvfp4_linear(x[:0], rows, kernel_set=TRITON).shape == (0, 18)
    assert nvfp4_linear(x, random_rows(0, 64), kernel_set=TRITON).shape == (7, 0)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
def test_a_row_depends_on_nothing_else(dtype: torch.dtype, same_in_any_order) -> None:
    x, rows = torch.randn(40, 80).to(dtype), random_rows(20, 80)
    together = nvfp4_linear(x, rows, kernel_set=TRITON)
    for part in (slice(0, 1), slice(31, 32), slice(5, 40)):
        assert torch.equal(nvfp4_linear(x[part], rows, kernel_set=TRITON), together[part])
    same_in_any_order(lambda: nvfp4_linear(x, rows, kernel_set=TRITON))
    same_in_any_order(lambda: select_dequantize(TRITON)(rows, dtype))

import itertools

import pytest
import torch

from kernels import panel_product
from kernels.nvfp4.api import nvfp4_linear, select_dequantize
from kernels.nvfp4.dequantize import dequantize
from kernels.nvfp4.quantize import pack, quantize, unpack
from kernels.nvfp4.records import NvFp4Rows

SETS = ("torch-cpu/1", "torch-cpu-invariant/1")
MAGNITUDES = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def random_rows(outputs: int, columns: int, scale_dtype: torch.dtype = torch.float32) -> NvFp4Rows:
    """Any codes and any finite, not negative block scales; rows that differ in scale."""
    return NvFp4Rows(
        codes=torch.randint(0, 256, (outputs, columns // 2), dtype=torch.uint8),
        block_scales=torch.rand(outputs, columns // 16).mul_(2).to(torch.float8_e4m3fn),
        row_scales=(torch.rand(outputs).add_(0.5) * columns**-0.5 / 4).to(scale_dtype),
    )


def exact(rows: NvFp4Rows) -> torch.Tensor:
    """Element by element, from the format's definition; float64 holds every value exactly."""
    out = torch.empty(rows.num_rows, rows.num_columns, dtype=torch.float64)
    scales, codes = rows.block_scales.double(), rows.codes.tolist()
    for row, column in itertools.product(range(rows.num_rows), range(rows.num_columns)):
        code = codes[row][column // 2] >> (4 if column % 2 else 0) & 15
        value = -MAGNITUDES[code & 7] if code & 8 else MAGNITUDES[code & 7]
        out[row, column] = value * scales[row, column // 16] * rows.row_scales[row].double()
    return out


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("outputs", "columns"), [(1, 16), (3, 48), (20, 64)])
def test_dequantized_is_the_exact_value_rounded(
    outputs: int, columns: int, scale_dtype: torch.dtype
) -> None:
    rows = random_rows(outputs, columns, scale_dtype)
    expected = exact(rows).float()
    assert torch.equal(dequantize(rows), expected)
    assert torch.equal(dequantize(rows, torch.bfloat16), expected.bfloat16())
    for kernel_set in (*SETS, "torch-reference/1"):
        for dtype in (torch.float32, torch.bfloat16):
            values = select_dequantize(kernel_set)(rows, dtype)
            assert torch.equal(values, expected.to(dtype))


def test_every_byte_with_every_block_scale() -> None:
    scales = [code for code in range(256) if code & 0x7F != 0x7F]
    rows = NvFp4Rows(
        codes=torch.arange(256, dtype=torch.int32).to(torch.uint8).repeat(len(scales), 1),
        block_scales=torch.tensor(scales, dtype=torch.uint8)
        .view(torch.float8_e4m3fn)
        .unsqueeze(1)
        .repeat(1, 32),
        row_scales=torch.ones(len(scales)),
    )
    table = torch.tensor(MAGNITUDES + tuple(-value for value in MAGNITUDES), dtype=torch.float64)
    pairs = torch.stack([table.repeat(16), table.repeat_interleave(16)], dim=1).flatten()
    expected = rows.block_scales[:, :1].double() * pairs
    assert torch.equal(dequantize(rows).double(), expected)


def test_panels_and_a_given_tensor_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, x = random_rows(50, 32), torch.randn(3, 32)
    whole, product = dequantize(rows), nvfp4_linear(x, rows)
    monkeypatch.setattr(panel_product, "_PANEL_BYTES", 1)  # panels of 16 rows, 50 is no multiple
    out = torch.full((50, 32), 7.0)
    assert dequantize(rows, out=out) is out
    assert torch.equal(out, whole)
    torch.testing.assert_close(nvfp4_linear(x, rows), product, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="expected out"):
        dequantize(rows, torch.bfloat16, out=out)
    with pytest.raises(ValueError, match="expected out"):
        dequantize(rows, out=torch.empty(32, 50).T)


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("outputs", "columns"), [(1, 16), (65, 48), (33, 192)])
def test_linear_equals_reference(
    rows: int,
    outputs: int,
    columns: int,
    scale_dtype: torch.dtype,
    kernel_set: str,
    dtype: torch.dtype,
) -> None:
    x, weight = torch.randn(rows, columns).to(dtype), random_rows(outputs, columns, scale_dtype)
    expected = nvfp4_linear(x, weight, kernel_set="torch-reference/1")
    actual = nvfp4_linear(x, weight, kernel_set=kernel_set)
    assert actual.dtype == torch.float32
    # Float32 sums of up to 192 exact products in another order, whatever the dtype of x.
    torch.testing.assert_close(actual, expected, rtol=3e-6, atol=3e-6)
    assert torch.equal(actual, nvfp4_linear(x, weight, kernel_set=kernel_set))


def test_reference_equals_a_product_of_exact_values() -> None:
    x, rows = torch.randn(3, 48), random_rows(5, 48)
    expected = (x.double() @ exact(rows).T).float()
    assert torch.equal(nvfp4_linear(x, rows, kernel_set="torch-reference/1"), expected)


def test_invariant_set_computes_each_row_alone(dtype: torch.dtype) -> None:
    x, weight = torch.randn(65, 48).to(dtype), random_rows(33, 48)
    whole = nvfp4_linear(x, weight, kernel_set=SETS[1])
    for row in (0, 1, 2, 33, 64):
        assert torch.equal(whole[row : row + 1], nvfp4_linear(x[row : row + 1].clone(), weight))


@pytest.mark.parametrize("kernel_set", [*SETS, "torch-reference/1"])
def test_a_nan_scale_shows_in_its_row_alone(kernel_set: str) -> None:
    rows = random_rows(3, 32)
    rows.block_scales.view(torch.uint8)[1, 1] = 0x7F
    product = nvfp4_linear(torch.randn(2, 32), rows, kernel_set=kernel_set)
    assert product.isnan().tolist() == [[False, True, False]] * 2


def test_packing_puts_the_even_element_low() -> None:
    codes = torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)
    assert pack(codes).tolist() == [[0x21, 0x0F]]
    assert torch.equal(unpack(pack(codes)), codes)


def test_quantizing_picks_the_nearest_value_ties_to_the_even_code() -> None:
    # With row scale 1 and a largest magnitude of 6 the block scale is 1.
    values = [
        6.0,
        0.25,
        0.75,
        1.25,
        1.75,
        2.5,
        3.5,
        5.0,
        -0.25,
        -0.75,
        0.3,
        -2.6,
        0.0,
        -6.0,
        4.9,
        9e-9,
    ]
    codes = [7, 0, 2, 2, 4, 4, 6, 6, 8, 10, 1, 13, 0, 15, 6, 0]
    rows = quantize(torch.tensor([values]), torch.ones(1))
    assert rows.block_scales.float().tolist() == [[1.0]]
    assert unpack(rows.codes).tolist() == [codes]


@pytest.mark.parametrize("row_scales", [None, torch.tensor([0.002, 0.004, 0.01])])
def test_quantizing_errs_by_half_a_step_at_most(row_scales: torch.Tensor | None) -> None:
    weight = torch.randn(3, 64)
    rows = quantize(weight, row_scales)
    assert torch.equal(rows.codes, quantize(weight, row_scales).codes)
    blocks = weight.view(3, 4, 16)
    error = (dequantize(rows).view(3, 4, 16) - blocks).abs().amax(dim=-1)
    # Half the widest step is 1 of 6; a block scale rounded down by 1/16 clips as much.
    assert bool((error <= blocks.abs().amax(dim=-1) * (1 / 6 + 1 / 16)).all())
    assert float(error.mean()) > 0


def test_quantizing_extremes() -> None:
    weight = torch.zeros(2, 32)
    assert torch.equal(dequantize(quantize(weight)), weight)
    weight[1, 5] = 3e30
    assert float(dequantize(quantize(weight))[1, 5]) == pytest.approx(3e30)
    weight[0, :16] = 1e-9  # below the smallest block scale: zero, not NaN
    assert float(dequantize(quantize(weight))[0].abs().max()) == 0.0
    clipped = quantize(torch.full((1, 16), 6000.0), torch.ones(1))
    assert dequantize(clipped).tolist() == [[6.0 * 448.0] * 16]  # the largest there is, not NaN
    with pytest.raises(ValueError, match="finite"):
        quantize(torch.full((1, 16), torch.inf))
    with pytest.raises(ValueError, match="multiple of 16"):
        quantize(torch.zeros(1, 24))


def test_refuses_what_does_not_fit() -> None:
    good, x = random_rows(3, 32), torch.zeros(1, 32)
    parts = {
        "codes": good.codes,
        "block_scales": good.block_scales,
        "row_scales": good.row_scales,
    }
    for change, message in (
        ({"codes": good.codes.short()}, "codes uint8"),
        ({"codes": good.codes[:, :12]}, "multiple of 16"),
        ({"block_scales": good.block_scales[:, :1]}, r"block_scales float8_e4m3fn \[3, 2\]"),
        ({"block_scales": good.block_scales.float()}, "block_scales float8_e4m3fn"),
        ({"row_scales": good.row_scales[:1]}, r"row_scales float32 or float16 \[3\]"),
        ({"row_scales": good.row_scales.double()}, "row_scales float32"),
        ({"codes": good.codes.T.contiguous().T}, "contiguous codes"),
    ):
        with pytest.raises(ValueError, match=message):
            nvfp4_linear(x, NvFp4Rows(**{**parts, **change}))
    with pytest.raises(ValueError, match=r"x \[rows, 32\]"):
        nvfp4_linear(x[:, :16], good)
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        nvfp4_linear(x.half(), good)

import pytest
import torch

from kernels import panel_product
from kernels.float8 import has_nan
from kernels.fp8_linear.api import fp8_linear

SETS = ("torch-cpu/1", "torch-cpu-invariant/1")
# Sums of up to 194 products in another order, then the scale; then one rounding.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2**-7}


def inputs(
    rows: int, outputs: int, columns: int, scales: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, columns).to(dtype)
    weight = torch.randn(outputs, columns).mul_(20).to(torch.float8_e4m3fn)
    return x, weight, torch.rand(scales).add_(0.5) * columns**-0.5 / 20


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize(
    ("columns", "outputs", "per_row"),
    [(2, 1, False), (10, 65, True), (64, 3, True), (194, 65, False)],
)
def test_equals_reference(
    rows: int, columns: int, outputs: int, per_row: bool, kernel_set: str, dtype: torch.dtype
) -> None:
    x, weight, scale = inputs(rows, outputs, columns, outputs if per_row else 1, dtype)
    expected = fp8_linear(x, weight, scale, kernel_set="torch-reference/1")
    actual = fp8_linear(x, weight, scale, kernel_set=kernel_set)
    assert actual.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(actual, fp8_linear(x, weight, scale, kernel_set=kernel_set))


@pytest.mark.parametrize("kernel_set", [*SETS, "torch-reference/1"])
def test_every_code_is_read_exactly(kernel_set: str) -> None:
    codes = [code for code in range(256) if code & 0x7F != 0x7F]
    values = []
    for code in codes:
        exponent, mantissa = code >> 3 & 15, code & 7
        magnitude = 2.0**-9 * mantissa if exponent == 0 else 2.0 ** (exponent - 10) * (8 + mantissa)
        values.append(-magnitude if code & 128 else magnitude)
    weight = torch.tensor(codes, dtype=torch.uint8).view(torch.float8_e4m3fn)
    picked = fp8_linear(
        torch.eye(len(codes)), weight.view(1, -1), torch.ones(1), kernel_set=kernel_set
    )
    assert picked.flatten().tolist() == values


def test_panels_equal_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, scale = inputs(5, 150, 40, 150, torch.float32)
    whole = fp8_linear(x, weight, scale)
    monkeypatch.setattr(panel_product, "_PANEL_BYTES", 32 * 40 * 4)
    torch.testing.assert_close(fp8_linear(x, weight, scale), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [10, 192])
def test_invariant_set_computes_each_row_alone(columns: int, dtype: torch.dtype) -> None:
    x, weight, scale = inputs(65, 33, columns, 33, dtype)
    whole = fp8_linear(x, weight, scale, kernel_set=SETS[1])
    for row in (0, 1, 2, 33, 64):
        alone = x[row : row + 1].clone()
        assert torch.equal(whole[row : row + 1], fp8_linear(alone, weight, scale))


def test_nan_codes_are_found() -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    finite = codes[(codes & 0x7F) != 0x7F].view(torch.float8_e4m3fn)
    assert not has_nan(finite)
    for code in (0x7F, 0xFF):
        one = torch.tensor([1, code, 1], dtype=torch.uint8).view(torch.float8_e4m3fn)
        assert has_nan(one)
        assert bool(one.float().isnan().any())


def test_refuses_what_does_not_fit() -> None:
    x, weight, scale = inputs(2, 3, 4, 1, torch.float32)
    with pytest.raises(ValueError, match=r"weight float8_e4m3fn \[outputs, 4\]"):
        fp8_linear(x, weight.float(), scale)
    with pytest.raises(ValueError, match=r"scale float32 \[1\] or \[3\]"):
        fp8_linear(x, weight, torch.ones(2))
    with pytest.raises(ValueError, match="even"):
        fp8_linear(x[:, :3], weight[:, :3].contiguous(), scale)
    with pytest.raises(ValueError, match="contiguous"):
        fp8_linear(x[:, :2], weight[:, :2], scale)
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        fp8_linear(x.half(), weight, scale)

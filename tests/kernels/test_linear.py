import pytest
import torch

from kernels.kernel_sets import UnknownKernelSetError
from kernels.linear import cpu
from kernels.linear.api import linear

# Sums of up to 193 products of size about 1/sqrt(columns) in another order; then one rounding.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2**-7}


@pytest.mark.parametrize("columns", [1, 63, 193])
@pytest.mark.parametrize("outputs", [1, 3, 65])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_reference(
    rows: int, columns: int, outputs: int, with_bias: bool, dtype: torch.dtype
) -> None:
    x = torch.randn(rows, columns).to(dtype)
    weight = (torch.randn(outputs, columns) * columns**-0.5).to(dtype)
    bias = torch.randn(outputs).to(dtype) if with_bias else None
    expected = linear(x, weight, bias, kernel_set="torch-reference/1")
    for kernel_set in ("torch-cpu/1", "torch-cpu-invariant/1"):
        actual = linear(x, weight, bias, kernel_set=kernel_set)
        assert actual.dtype == dtype
        torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        assert torch.equal(actual, linear(x, weight, bias, kernel_set=kernel_set))


@pytest.mark.parametrize("rows", [1, 4, 5, 64])
def test_widened_panels_equal_one_widened_product(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_PANEL_BYTES", 64 * 40 * 4)
    x, weight = torch.randn(rows, 40).bfloat16(), torch.randn(150, 40).bfloat16()
    bias = torch.randn(150).bfloat16()
    panels = cpu._linear_widened(x, weight, bias)
    whole = torch.nn.functional.linear(x.float(), weight.float(), bias.float()).bfloat16()
    torch.testing.assert_close(panels, whole, rtol=2**-8, atol=1e-5)


def test_unknown_kernel_set_names_the_known_ones() -> None:
    with pytest.raises(
        UnknownKernelSetError, match=r"'torch-cpu/2'.*torch-cpu-invariant/1, torch-cpu/1, torch-ref"
    ):
        linear(torch.zeros(1, 2), torch.zeros(3, 2), kernel_set="torch-cpu/2")


def test_refuses_what_does_not_fit() -> None:
    x, weight = torch.zeros(2, 4), torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"weight \[outputs, 4\]"):
        linear(x, weight[:, :3])
    with pytest.raises(ValueError, match=r"bias \[3\]"):
        linear(x, weight, torch.zeros(2))
    with pytest.raises(ValueError, match=r"all torch.float32"):
        linear(x, weight.bfloat16())
    with pytest.raises(ValueError, match="cpu"):
        linear(x, torch.empty(3, 4, device="meta"))

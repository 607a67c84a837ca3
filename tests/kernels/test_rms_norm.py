import pytest
import torch

from kernels.rms_norm.api import rms_norm

# float32: sums of up to 577 squares in another order. bfloat16: one rounding, which near a tie
# falls to the neighbour, at most 2^-7 apart.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7}


@pytest.mark.parametrize("hidden", [1, 3, 63, 65, 577])
def test_equals_reference(rows: int, hidden: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, hidden).to(dtype), torch.randn(hidden).to(dtype)
    expected = rms_norm(x, weight, 1e-5, kernel_set="torch-reference/1")
    actual = rms_norm(x, weight, 1e-5)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=1e-6)
    assert torch.equal(actual, rms_norm(x, weight, 1e-5))


def test_a_row_does_not_depend_on_its_neighbours(dtype: torch.dtype) -> None:
    x, weight = torch.randn(65, 63).to(dtype), torch.randn(63).to(dtype)
    assert torch.equal(rms_norm(x, weight, 1e-5)[-1:], rms_norm(x[-1:], weight, 1e-5))


def test_reference_by_hand() -> None:
    x, weight = torch.tensor([[3.0, 4.0]]), torch.tensor([2.0, -1.0])
    expected = torch.tensor([[6 / 3.5, -4 / 3.5]])  # mean square 12.5, minus a quarter: 3.5^2
    torch.testing.assert_close(rms_norm(x, weight, -0.25, kernel_set="torch-reference/1"), expected)


def test_refuses_what_does_not_fit() -> None:
    x = torch.zeros(2, 8)
    with pytest.raises(ValueError, match=r"weight \[8\]"):
        rms_norm(x, torch.zeros(7), 1e-5)
    with pytest.raises(ValueError, match=r"float32, got torch.bfloat16"):
        rms_norm(x, torch.zeros(8, dtype=torch.bfloat16), 1e-5)
    with pytest.raises(ValueError, match=r"x \[rows, hidden\]"):
        rms_norm(x[0], torch.zeros(8), 1e-5)

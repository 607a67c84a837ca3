import math

import pytest
import torch

from kernels.gated_activation.api import silu_gated

# float32: exp in single precision. bfloat16: rounded after silu and after the product.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-7}


@pytest.mark.parametrize("size", [1, 3, 63, 65])
def test_equals_reference(rows: int, size: int, dtype: torch.dtype) -> None:
    gate_up = (3 * torch.randn(rows, 2 * size)).to(dtype)
    expected = silu_gated(gate_up, kernel_set="torch-reference/1")
    before = gate_up.clone()
    actual = silu_gated(gate_up)
    assert torch.equal(gate_up, before)  # the input is also captured at a boundary
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=1e-6)
    assert torch.equal(actual, silu_gated(gate_up))


def test_reference_by_hand() -> None:
    actual = silu_gated(torch.tensor([[2.0, -1.0, 3.0, 5.0]]), kernel_set="torch-reference/1")
    expected = [2 / (1 + math.exp(-2)) * 3, -1 / (1 + math.exp(1)) * 5]
    torch.testing.assert_close(actual, torch.tensor([expected]))


def test_refuses_odd_columns() -> None:
    with pytest.raises(ValueError, match="intermediate"):
        silu_gated(torch.zeros(2, 5))

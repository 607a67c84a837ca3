import math
from collections.abc import Callable

import pytest
import torch

from kernels.gated_activation.api import gelu_tanh_gated, silu_gated

Op = Callable[..., torch.Tensor]
# float32: exp or tanh in single precision; 1 + tanh cancels where the gate is far below zero, and
# leaves an absolute error. bfloat16: rounded after the activation and after the product.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-7}
ABSOLUTE = {silu_gated: 1e-6, gelu_tanh_gated: 4e-6}


@pytest.mark.parametrize("size", [1, 3, 63, 65])
@pytest.mark.parametrize("op", [silu_gated, gelu_tanh_gated])
def test_equals_reference(rows: int, size: int, dtype: torch.dtype, op: Op) -> None:
    gate_up = (3 * torch.randn(rows, 2 * size)).to(dtype)
    expected = op(gate_up, kernel_set="torch-reference/1")
    before = gate_up.clone()
    for kernel_set in ("torch-cpu/1", "torch-cpu-invariant/1"):
        actual = op(gate_up, kernel_set=kernel_set)
        assert torch.equal(gate_up, before)  # the input is also captured at a boundary
        assert actual.dtype == dtype
        torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=ABSOLUTE[op])
        assert torch.equal(actual, op(gate_up, kernel_set=kernel_set))


def test_references_by_hand() -> None:
    actual = silu_gated(torch.tensor([[2.0, -1.0, 3.0, 5.0]]), kernel_set="torch-reference/1")
    expected = [2 / (1 + math.exp(-2)) * 3, -1 / (1 + math.exp(1)) * 5]
    torch.testing.assert_close(actual, torch.tensor([expected]))
    actual = gelu_tanh_gated(torch.tensor([[1.0, -2.0, 3.0, 5.0]]), kernel_set="torch-reference/1")
    # From a table of the approximation: gelu(1) = 0.841192, gelu(-2) = -0.045402.
    torch.testing.assert_close(
        actual, torch.tensor([[0.841192 * 3, -0.045402 * 5]]), rtol=0, atol=5e-6
    )


@pytest.mark.parametrize("op", [silu_gated, gelu_tanh_gated])
def test_refuses_odd_columns(op: Op) -> None:
    with pytest.raises(ValueError, match="intermediate"):
        op(torch.zeros(2, 5))

import math

import pytest
import torch

from kernels.softcap.api import softcap_

SETS = ("torch-cpu/1", "torch-cpu-invariant/1")
# tanh is within some units of the last place; bfloat16 rounds after the quotient, the tanh and
# the product.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-6}


@pytest.mark.parametrize("columns", [1, 65, 1000])
@pytest.mark.parametrize("cap", [1.0, 30.0])
def test_equals_reference(rows: int, columns: int, cap: float, dtype: torch.dtype) -> None:
    values = (torch.randn(rows, columns) * 40).to(dtype)
    expected = softcap_(values.clone(), cap, kernel_set="torch-reference/1")
    for kernel_set in SETS:
        x = values.clone()
        assert softcap_(x, cap, kernel_set=kernel_set) is x
        torch.testing.assert_close(x, expected, rtol=TOLERANCE[dtype], atol=cap * TOLERANCE[dtype])


@pytest.mark.parametrize("columns", [1, 65, 1000])
@pytest.mark.parametrize("cap", [30.0, 7.3])
def test_in_place_has_the_bytes_of_the_plain_formula(
    rows: int, columns: int, cap: float, dtype: torch.dtype
) -> None:
    x = (torch.randn(rows, columns) * 40).to(dtype)
    special = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0]).to(dtype)
    x.view(-1)[: min(5, x.numel())] = special[: min(5, x.numel())]
    plain = torch.tanh(x / cap) * cap
    softcap_(x, cap)
    bits = {torch.float32: torch.int32, torch.bfloat16: torch.int16}[dtype]
    assert torch.equal(x.view(bits), plain.view(bits))  # NaN equals NaN, and -0 is not 0


@pytest.mark.parametrize("kernel_set", [*SETS, "torch-reference/1"])
def test_bounds_and_special_values(kernel_set: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, math.inf, -math.inf, math.nan, 1e30, -1e30]]).to(dtype)
    softcap_(x, 30.0, kernel_set=kernel_set)
    assert x[0, :3].tolist() == [0.0, 30.0, -30.0]
    assert math.isnan(x[0, 3])
    assert x[0, 4:].tolist() == [30.0, -30.0]


def test_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="cap above 0"):
        softcap_(torch.zeros(1, 2), 0.0)
    with pytest.raises(ValueError, match=r"x \[rows, columns\]"):
        softcap_(torch.zeros(2), 1.0)
    with pytest.raises(ValueError, match="floating-point"):
        softcap_(torch.zeros(1, 2, dtype=torch.int64), 1.0)

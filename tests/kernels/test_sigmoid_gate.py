import pytest
import torch

from kernels.sigmoid_gate.api import sigmoid_gate

SETS = ("torch-cpu/1", "torch-cpu-invariant/1")
# float32: a sigmoid of a few units in the last place. bfloat16: one rounding.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-7}


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 10), (5, 4, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_reference(kernel_set: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, gate = (8 * torch.randn(2, *shape)).to(dtype)
    expected = sigmoid_gate(x, gate, kernel_set="torch-reference/1")
    actual = sigmoid_gate(x, gate, kernel_set=kernel_set)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=1e-6)


def test_extremes_are_finite() -> None:
    gate = torch.tensor([[-1e30, -200.0, 0.0, 200.0, 1e30]])
    for kernel_set in (*SETS, "torch-reference/1"):
        out = sigmoid_gate(torch.ones(1, 5), gate, kernel_set=kernel_set)
        assert torch.equal(out, torch.tensor([[0.0, 0.0, 0.5, 1.0, 1.0]]))


@pytest.mark.parametrize("kernel_set", SETS)
def test_a_gate_may_be_a_slice_of_a_wider_projection(kernel_set: str) -> None:
    wide, x = torch.randn(4, 3, 20), torch.randn(4, 3, 10)
    actual = sigmoid_gate(x, wide[..., 10:], kernel_set=kernel_set)
    torch.testing.assert_close(actual, x * torch.sigmoid(wide[..., 10:]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_invariant_set_computes_each_row_alone(dtype: torch.dtype) -> None:
    x, gate = torch.randn(2, 65, 3, 10).to(dtype)
    whole = sigmoid_gate(x, gate, kernel_set=SETS[1])
    for row in (0, 1, 33, 64):
        alone = sigmoid_gate(x[row : row + 1].clone(), gate[row : row + 1].clone())
        assert torch.equal(whole[row : row + 1], alone)


def test_refuses_what_does_not_fit() -> None:
    x = torch.zeros(2, 8)
    with pytest.raises(ValueError, match=r"gate \[2, 8\]"):
        sigmoid_gate(x, x[:1])
    with pytest.raises(ValueError, match=r"gate of torch\.float32"):
        sigmoid_gate(x, x.bfloat16())
    with pytest.raises(ValueError, match="rows"):
        sigmoid_gate(x[0], x[0])

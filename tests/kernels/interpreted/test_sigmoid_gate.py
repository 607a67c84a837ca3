import math

import pytest
import torch

from kernels.sigmoid_gate.api import sigmoid_gate

TRITON, REFERENCE = "triton/1", "torch-reference/1"
# float32: exp, a quotient and a product. bfloat16: one rounding, or the neighbour near a tie.
RELATIVE = {torch.float32: 2e-6, torch.bfloat16: 2**-7}
MANY_ROWS = pytest.param((65, 3, 5), marks=pytest.mark.slow)


def same(x: torch.Tensor, gate: torch.Tensor) -> None:
    actual = sigmoid_gate(x, gate, kernel_set=TRITON)
    expected = sigmoid_gate(x, gate, kernel_set=REFERENCE)
    assert (actual.dtype, actual.is_contiguous()) == (x.dtype, True)
    torch.testing.assert_close(actual, expected, rtol=RELATIVE[x.dtype], atol=1e-9)


@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (2, 5, 123), (1, 16, 256), MANY_ROWS])
def test_equals_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, gate = (8 * torch.randn(2, *shape)).to(dtype)
    same(x, gate)


def test_views(dtype: torch.dtype) -> None:
    fused = torch.randn(3, 7, 2, 16).to(dtype)
    x, gate = fused.unbind(2)  # as a projection lays them out, query and gate of each head
    same(x, gate)
    same(x.contiguous(), gate)
    same(x[:, :, ::2], gate[..., 3:11])
    same(fused, fused.flip(0))
    same(fused[:, 0, 0], gate.transpose(0, 1)[4, :3])


def test_large_gates_neither_overflow_nor_hide_a_nan() -> None:
    gate = torch.tensor([[-1e30, -200.0, 0.0, 200.0, 1e30, math.nan]])
    out = sigmoid_gate(torch.full_like(gate, 2.0), gate, kernel_set=TRITON)[0].tolist()
    assert out[:5] == [0.0, 0.0, 1.0, 2.0, 2.0]
    assert math.isnan(out[5])


def test_nothing_gives_nothing() -> None:
    for shape in ((0, 4, 8), (3, 0, 8), (2, 0)):
        assert (
            sigmoid_gate(torch.empty(shape), torch.empty(shape), kernel_set=TRITON).shape == shape
        )


def test_a_row_depends_on_nothing_else(dtype: torch.dtype, same_in_any_order) -> None:
    x, gate = torch.randn(2, 4, 9, 130).to(dtype)
    together = sigmoid_gate(x, gate, kernel_set=TRITON)
    rows = zip(x.split(1), gate.split(1), strict=True)
    alone = [sigmoid_gate(*row, kernel_set=TRITON) for row in rows]
    assert torch.equal(torch.cat(alone), together)
    same_in_any_order(lambda: sigmoid_gate(x, gate, kernel_set=TRITON))

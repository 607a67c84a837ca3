import math

import pytest
import torch

from kernels.gated_norm.api import gated_norm

TRITON, REFERENCE = "triton/1", "torch-reference/1"
# float32: sums of up to 577 squares in another order, a reciprocal root and a silu. bfloat16: one
# rounding, or the neighbour near a tie.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2**-7}
MANY_ROWS = pytest.param((65, 3, 65), marks=pytest.mark.slow)


def same(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> None:
    actual = gated_norm(x, gate, weight, 1e-6, kernel_set=TRITON)
    expected = gated_norm(x, gate, weight, 1e-6, kernel_set=REFERENCE)
    assert (actual.dtype, actual.is_contiguous()) == (x.dtype, True)
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[x.dtype], atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (2, 3, 10), (1, 2, 128), (1, 577), MANY_ROWS])
def test_equals_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, gate = torch.randn(2, *shape).to(dtype)
    same(x, gate * 4, torch.randn(shape[-1]).to(dtype))


def test_views(dtype: torch.dtype) -> None:
    fused, weight = torch.randn(3, 200).to(dtype), torch.randn(64).to(dtype)
    x, gate = fused[:, :96].view(3, 6, 16), fused[:, 100:196].view(3, 6, 16)
    same(x, gate, weight[:16])
    same(x[:, 1:5, ::2], gate[:, :4, 8:], weight[:16:2])
    same(x.transpose(0, 1), gate.transpose(0, 1), weight[3:19])
    same(x.view(3, 2, 3, 16), gate.flip(0).view(3, 2, 3, 16), weight[:16])


def test_a_gate_neither_overflows_nor_hides_a_nan() -> None:
    gate = torch.tensor([[-1e30, -200.0, 0.0, 200.0, math.nan]])
    out = gated_norm(torch.ones(1, 5), gate, torch.ones(5), 0.0, kernel_set=TRITON)[0].tolist()
    assert out[:3] == [0.0, 0.0, 0.0]
    assert out[3] == pytest.approx(200.0)
    assert math.isnan(out[4])


def test_nothing_gives_nothing() -> None:
    for shape in ((0, 4, 8), (3, 0, 8)):
        x = torch.empty(shape)
        assert gated_norm(x, x, torch.ones(8), 1e-6, kernel_set=TRITON).shape == shape


@pytest.mark.parametrize("size", [10, pytest.param(128, marks=pytest.mark.slow)])
def test_a_row_depends_on_nothing_else(size: int, dtype: torch.dtype, same_in_any_order) -> None:
    x, gate = torch.randn(2, 4, 2, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    together = gated_norm(x, gate, weight, 1e-6, kernel_set=TRITON)
    for chunk in (1, 3):
        pieces = zip(x.split(chunk), gate.split(chunk), strict=True)
        apart = [gated_norm(*piece, weight, 1e-6, kernel_set=TRITON) for piece in pieces]
        assert torch.equal(torch.cat(apart), together)
    elsewhere = torch.empty(4, 2, size + 3, dtype=dtype)[..., 3:].copy_(x)
    assert torch.equal(gated_norm(elsewhere, gate, weight, 1e-6, kernel_set=TRITON), together)
    same_in_any_order(lambda: gated_norm(x, gate, weight, 1e-6, kernel_set=TRITON))


def test_refuses_what_it_cannot_do() -> None:
    x, half = torch.zeros(1, 16385), torch.zeros(1, 8, dtype=torch.float16)
    with pytest.raises(ValueError, match="1 to 16384"):
        gated_norm(x, x, x[0], 1e-6, kernel_set=TRITON)
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        gated_norm(half, half, half[0], 1e-6, kernel_set=TRITON)

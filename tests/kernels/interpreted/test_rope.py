import pytest
import torch

from kernels.rope.api import angles, rope

# float32: two products and a sum, each rounded, of numbers of up to 4. bfloat16: one rounding of
# such a number, at most half of 2^-6, or the neighbour near a tie.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-6}


def tables(rows: int, half: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.rand(rows, half) * 7
    return angles(angle.cos(), angle.sin())


def same(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    actual = rope(x, cos, sin, kernel_set="triton/1")
    expected = rope(x, cos, sin, kernel_set="torch-reference/1")
    assert actual.dtype == x.dtype
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE[x.dtype])


MANY = [pytest.param(shape, marks=pytest.mark.slow) for shape in ((65, 9, 64), (5, 123, 6))]


@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 9, 10), (2, 65, 126), (2, 1, 512), *MANY])
def test_equals_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    same(torch.randn(shape).to(dtype), *tables(shape[0], shape[2] // 2))


def test_rotates_slices_of_a_larger_result(dtype: torch.dtype) -> None:
    fused = torch.randn(3, 9, 64).to(dtype)
    same(fused[:, :6], *tables(3, 32))
    same(fused[:, 6:, 3:35], *tables(3, 16))
    same(fused[..., ::2], *tables(3, 16))


def test_nothing_gives_nothing() -> None:
    assert rope(torch.empty(0, 3, 8), *tables(0, 4), kernel_set="triton/1").shape == (0, 3, 8)


def test_a_row_depends_on_nothing_else(dtype: torch.dtype, same_in_any_order) -> None:
    x, (cos, sin) = torch.randn(3, 11, 58).to(dtype), tables(3, 29)
    together = rope(x, cos, sin, kernel_set="triton/1")
    for row in range(3):
        at = slice(row, row + 1)
        alone = rope(x[at], cos[at], sin[at], kernel_set="triton/1")
        assert torch.equal(alone, together[at])
    same_in_any_order(lambda: rope(x, cos, sin, kernel_set="triton/1"))

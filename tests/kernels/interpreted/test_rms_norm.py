import pytest
import torch

from kernels.rms_norm.api import add_rms_norm, rms_norm

# float32: sums of up to 577 squares in another order, and a reciprocal root that is rounded twice.
# bfloat16: one rounding, which near a tie falls to the neighbour, at most 2^-7 apart.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7}


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[expected.dtype], atol=1e-6)


def same(x: torch.Tensor, weight, offset: bool) -> None:
    arguments = (x, weight, 1e-5, offset)
    close(
        rms_norm(*arguments, kernel_set="triton/1"),
        rms_norm(*arguments, kernel_set="torch-reference/1"),
    )


MANY_ROWS = pytest.param((65, 65), marks=pytest.mark.slow)


@pytest.mark.parametrize("shape", [(1, 1), (2, 63), (3, 577), (5, 123), (2, 2, 256), MANY_ROWS])
def test_equals_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = torch.randn(shape).to(dtype), (torch.randn(shape[-1]) * 0.1).to(dtype)
    same(x, weight, False)
    same(x, weight, True)
    same(x, None, False)


def test_reads_slices_and_strided_elements(dtype: torch.dtype) -> None:
    fused, weight = torch.randn(3, 9, 64).to(dtype), torch.randn(64).to(dtype)
    same(fused[:, 2:6], weight, False)
    same(fused[:, :, 3:35], weight[:32], False)
    same(fused[:, 0, ::2], weight[::2], False)
    same(fused[:, 4], weight, True)
    same(fused.transpose(0, 1), weight, False)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64)])
def test_nothing_gives_nothing(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.empty(shape, dtype=dtype)
    assert rms_norm(x, None, 1e-5, kernel_set="triton/1").shape == shape
    assert add_rms_norm(x, x, None, 1e-5, kernel_set="triton/1")[1].shape == shape


@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (2, 2, 256)])
def test_the_norm_of_a_sum_is_that_of_the_rounded_sum(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, added = torch.randn(2, *shape).to(dtype).unbind(0)
    weight = (torch.randn(shape[-1]) * 0.1).to(dtype)
    for offset in (False, True):
        arguments = (x, added, weight, 1e-5, offset)
        normed, total = add_rms_norm(*arguments, kernel_set="triton/1")
        assert torch.equal(total, x + added)
        assert torch.equal(normed, rms_norm(total, weight, 1e-5, offset, kernel_set="triton/1"))
        close(normed, add_rms_norm(*arguments, kernel_set="torch-reference/1")[0])


@pytest.mark.parametrize("hidden", [63, 577, 1024])
def test_a_row_depends_on_nothing_else(hidden: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(9, hidden).to(dtype), torch.randn(hidden).to(dtype)
    together = rms_norm(x, weight, 1e-6, kernel_set="triton/1")
    for chunk in (1, 4):
        alone = [rms_norm(rows, weight, 1e-6, kernel_set="triton/1") for rows in x.split(chunk)]
        assert torch.equal(torch.cat(alone), together)
    elsewhere = torch.empty(9, hidden + 3, dtype=dtype)[:, 3:]
    elsewhere.copy_(x)
    assert torch.equal(rms_norm(elsewhere, weight, 1e-6, kernel_set="triton/1"), together)


def test_any_order_of_programs(same_in_any_order, dtype: torch.dtype) -> None:
    x, added = torch.randn(2, 3, 3, 65).to(dtype).unbind(0)
    same_in_any_order(lambda: add_rms_norm(x, added, None, 1e-5, kernel_set="triton/1"))


def test_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="1 to 16384"):
        rms_norm(torch.zeros(1, 16385), None, 1e-5, kernel_set="triton/1")
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        rms_norm(torch.zeros(1, 8, dtype=torch.float16), None, 1e-5, kernel_set="triton/1")
    with pytest.raises(ValueError, match=r"added \[2, 8\]"):
        add_rms_norm(torch.zeros(2, 8), torch.zeros(1, 8), None, 1e-5)
    with pytest.raises(ValueError, match=r"added of torch\.float32"):
        add_rms_norm(torch.zeros(2, 8), torch.zeros(2, 8).double(), None, 1e-5)

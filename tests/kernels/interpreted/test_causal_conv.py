import math

import pytest
import torch

from kernels.causal_conv.api import causal_conv, select

TRITON, REFERENCE = "triton/1", "torch-reference/1"
# float32: four products of size about 1 and a silu. bfloat16: one rounding, or the neighbour near
# a tie.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-7}


def inputs(rows: int, channels: int, dtype: torch.dtype, taps: int = 4) -> tuple[torch.Tensor, ...]:
    merged = torch.randn(rows, channels + 7).to(dtype)
    return (
        merged[:, 3 : 3 + channels],  # part of a merged projection, as in use
        torch.randn(channels, taps).to(dtype),
        torch.randn(channels, taps - 1).to(dtype),
    )


def same(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> None:
    expected_state = state.clone()
    expected = causal_conv(x, weight, expected_state, kernel_set=REFERENCE)
    actual = causal_conv(x, weight, state, kernel_set=TRITON)
    assert (actual.dtype, actual.is_contiguous()) == (x.dtype, True)
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[x.dtype], atol=2e-6)
    assert torch.equal(state, expected_state)


MANY = [pytest.param(rows, 65, 4, marks=pytest.mark.slow) for rows in (63, 65)]


@pytest.mark.parametrize(
    ("rows", "channels", "taps"),
    [(1, 1, 2), (2, 130, 4), (3, 33, 3), (9, 5, 4), (17, 3, 7), *MANY],
)
def test_equals_reference(rows: int, channels: int, taps: int, dtype: torch.dtype) -> None:
    same(*inputs(rows, channels, dtype, taps))


def test_views(dtype: torch.dtype) -> None:
    x, weight, state = inputs(10, 12, dtype)
    same(x[:, ::2], weight[::2], state[::2])
    same(x.T[:, :5], weight.repeat(1, 2)[:5, ::2], state.flip(0)[:5])
    layers = torch.randn(2, 3, 12).to(dtype)
    before = layers[0].clone()
    same(x, weight, layers[1].T)
    assert torch.equal(layers[0], before)


def test_no_rows_leave_the_state(dtype: torch.dtype) -> None:
    x, weight, state = inputs(0, 5, dtype)
    before = state.clone()
    assert select(TRITON)(x, weight, state).shape == (0, 5)
    assert torch.equal(state, before)


def in_pieces(
    size: int, x: torch.Tensor, weight: torch.Tensor, start: torch.Tensor
) -> list[torch.Tensor]:
    """The result for all rows, and the state, of calls of ``size`` rows each."""
    state = start.clone()
    parts = [causal_conv(part, weight, state, kernel_set=TRITON) for part in x.split(size)]
    return [torch.cat(parts), state]


MANY_ROWS = pytest.param(66, 9, (1, 2, 7, 63, 64), marks=pytest.mark.slow)


@pytest.mark.parametrize(("rows", "channels", "sizes"), [(9, 9, (1, 7)), MANY_ROWS])
def test_a_cut_of_the_rows_changes_no_bit(
    rows: int, channels: int, sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    arguments = inputs(rows, channels, dtype)
    whole = in_pieces(rows, *arguments)
    for size in sizes:
        for actual, expected in zip(in_pieces(size, *arguments), whole, strict=True):
            assert torch.equal(actual, expected)


@pytest.mark.parametrize("rows", [9, pytest.param(2, marks=pytest.mark.slow)])
def test_any_order_of_programs(rows: int, dtype: torch.dtype, same_in_any_order) -> None:
    x, weight, start = inputs(rows, 140, dtype)

    def op() -> tuple[torch.Tensor, torch.Tensor]:
        state = start.clone()
        return causal_conv(x, weight, state, kernel_set=TRITON), state

    same_in_any_order(op)


def test_a_nan_stays_in_its_window() -> None:
    x, weight, state = inputs(9, 2, torch.float32)
    x[4, 1] = math.nan
    out = causal_conv(x, weight, state, kernel_set=TRITON)
    assert torch.isnan(out).nonzero().tolist() == [[row, 1] for row in (4, 5, 6, 7)]
    assert not torch.isnan(state).any()


def test_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="at most 17 taps"):
        causal_conv(torch.zeros(1, 2), torch.zeros(2, 18), torch.zeros(2, 17), kernel_set=TRITON)
    half = torch.zeros(2, 2, dtype=torch.float16)
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        causal_conv(half, half, half[:, :1], kernel_set=TRITON)

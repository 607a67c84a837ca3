import math

import pytest
import torch
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    causal_conv1d_fn,
    causal_conv1d_update,
)

from kernels.causal_conv.api import causal_conv

SETS = ("torch-cpu/1", "torch-cpu-invariant/1")
# float32: four products of size about 1 and silu's exp. bfloat16: one rounding, near a tie to the
# neighbour.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-7}


def inputs(rows: int, channels: int, taps: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    merged = torch.randn(rows, channels + 7).to(dtype)
    return (
        merged[:, 3 : 3 + channels],  # part of a merged projection, as in use
        torch.randn(channels, taps).to(dtype),
        torch.randn(channels, taps - 1).to(dtype),
    )


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize(("channels", "taps"), [(1, 2), (10, 4), (65, 4), (33, 3)])
def test_equals_reference(
    rows: int, channels: int, taps: int, kernel_set: str, dtype: torch.dtype
) -> None:
    x, weight, state = inputs(rows, channels, taps, dtype)
    expected_state, again = state.clone(), state.clone()
    expected = causal_conv(x, weight, expected_state, kernel_set="torch-reference/1")
    actual = causal_conv(x, weight, state, kernel_set=kernel_set)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=2e-6)
    assert torch.equal(state, expected_state)
    assert torch.equal(actual, causal_conv(x, weight, again, kernel_set=kernel_set))


def test_reference_by_scalar_loops() -> None:
    x, weight, state = inputs(5, 3, 4, torch.float32)
    history = torch.cat([state.T, x]).tolist()
    actual = causal_conv(x, weight, state, kernel_set="torch-reference/1")
    for row in range(5):
        for channel in range(3):
            total = sum(
                history[row + tap][channel] * float(weight[channel, tap]) for tap in range(4)
            )
            assert float(actual[row, channel]) == pytest.approx(
                total / (1 + math.exp(-total)), rel=1e-6
            )
    assert state.T.tolist() == history[-3:]


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_equals_transformers(rows: int) -> None:
    x, weight, state = inputs(rows, 12, 4, torch.float32)
    their_state = torch.zeros(1, 12, 3)
    theirs = causal_conv1d_fn(x.T[None], weight, activation="silu")
    state.zero_()
    torch.testing.assert_close(causal_conv(x, weight, state).T[None], theirs)
    # The update is for one row after any prefix; feed it the same rows one by one.
    again = torch.zeros_like(state)
    for row in x.split(1):
        theirs = causal_conv1d_update(row.T[None], their_state, weight, activation="silu")
        torch.testing.assert_close(causal_conv(row, weight, again).T[None], theirs)
        assert torch.equal(again, their_state[0])


@pytest.mark.parametrize("channels", [10, 64])
def test_invariant_set_does_not_see_how_rows_are_split(channels: int, dtype: torch.dtype) -> None:
    x, weight, start = inputs(65, channels, 4, dtype)
    whole_state = start.clone()
    whole = causal_conv(x, weight, whole_state, kernel_set=SETS[1])
    for size in (1, 2, 3, 7, 64):
        state = start.clone()
        parts = [causal_conv(part, weight, state, kernel_set=SETS[1]) for part in x.split(size)]
        assert torch.equal(torch.cat(parts), whole)
        assert torch.equal(state, whole_state)
    assert torch.equal(causal_conv(x[:1], weight, start), whole[:1])


def test_refuses_what_does_not_fit() -> None:
    x, weight, state = torch.zeros(2, 8), torch.zeros(8, 4), torch.zeros(8, 3)
    with pytest.raises(ValueError, match=r"state \[8, 3\]"):
        causal_conv(x, weight, state.T)
    with pytest.raises(ValueError, match=r"weight \[8"):
        causal_conv(x, weight.T, state)
    with pytest.raises(ValueError, match=r"all torch.float32"):
        causal_conv(x, weight, state.bfloat16())
    with pytest.raises(ValueError, match="a row or more"):
        causal_conv(x[:0], weight, state)

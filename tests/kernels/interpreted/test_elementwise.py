"""Ops whose elements do not meet: activations, cap, lookup."""

import math

import pytest
import torch

from kernels.embedding.api import embedding
from kernels.gated_activation.api import gelu_tanh_gated, silu_gated
from kernels.softcap.api import softcap_

TRITON, REFERENCE = "triton/1", "torch-reference/1"
# float32: exp, a quotient and three products, each within 2 units of 2^-24 or so; a GELU whose
# tanh is near -1 cancels, which leaves an absolute error. bfloat16: one rounding of at most 2^-8
# relative, or the neighbour near a tie.
RELATIVE = {torch.float32: 2e-6, torch.bfloat16: 2**-7}
MANY_ROWS = pytest.param((65, 3), marks=pytest.mark.slow)
SHAPES = [(1, 1), (3, 63), (2, 65), (5, 123), (2, 2048), MANY_ROWS]


def close(actual: torch.Tensor, expected: torch.Tensor, absolute: float) -> None:
    assert actual.dtype == expected.dtype
    rtol = RELATIVE[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=absolute, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", [silu_gated, gelu_tanh_gated])
def test_activations_equal_reference(op, shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = (torch.randn(shape[0], 2 * shape[1]) * 3).to(dtype)
    close(op(x, kernel_set=TRITON), op(x, kernel_set=REFERENCE), 2e-6)
    sliced = torch.randn(3, 3 * shape[1]).to(dtype)[:, : 2 * shape[1]]
    close(op(sliced, kernel_set=TRITON), op(sliced, kernel_set=REFERENCE), 2e-6)


@pytest.mark.parametrize("op", [silu_gated, gelu_tanh_gated])
def test_large_gates_neither_overflow_nor_hide_a_nan(op) -> None:
    gates = [-1e30, -200.0, -90.0, 0.0, 90.0, 1e4, math.nan]
    x = torch.tensor([gates + [1.0] * 7])
    active = op(x, kernel_set=TRITON)[0].tolist()
    assert [abs(value) for value in active[:4]] == pytest.approx([0.0] * 4, abs=1e-30)
    assert active[4:6] == [90.0, 1e4]
    assert math.isnan(active[6])


@pytest.mark.parametrize("shape", SHAPES)
def test_softcap_equals_reference(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = (torch.randn(shape) * torch.logspace(-6, 3, shape[1])).to(dtype)
    for cap in (0.5, 30.0):
        actual = x.clone()
        assert softcap_(actual, cap, kernel_set=TRITON) is actual
        close(actual, softcap_(x.clone(), cap, kernel_set=REFERENCE), 0.0)


def test_softcap_of_what_is_special_and_of_views(dtype: torch.dtype) -> None:
    x = torch.tensor([[math.inf, -math.inf, math.nan, 0.0]], dtype=dtype)
    assert softcap_(x, 2.0, kernel_set=TRITON)[0, [0, 1, 3]].tolist() == [2.0, -2.0, 0.0]
    assert math.isnan(x[0, 2])
    whole = torch.randn(4, 10).to(dtype)
    for part in (lambda y: y[1:3, 3:7], lambda y: y.T[2:5], lambda y: y[:, ::3]):
        actual, expected = whole.clone(), whole.clone()
        softcap_(part(actual), 1.5, kernel_set=TRITON)
        softcap_(part(expected), 1.5, kernel_set=REFERENCE)
        close(actual, expected, 1e-7)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [None, 5.7])
def test_lookup_has_the_bits_of_every_set(
    shape: tuple[int, int], scale: float | None, dtype: torch.dtype
) -> None:
    weight = torch.randn(50, shape[1]).to(dtype)
    ids = torch.randint(0, 50, (shape[0],))
    for rows, table in ((ids, weight), (ids[::2], torch.randn(50, 80).to(dtype)[:, 3:70])):
        actual = embedding(rows, table, scale, kernel_set=TRITON)
        assert torch.equal(actual, embedding(rows, table, scale, kernel_set=REFERENCE))
        assert torch.equal(actual, embedding(rows, table, scale))


def test_nothing_gives_nothing() -> None:
    assert silu_gated(torch.empty(0, 6), kernel_set=TRITON).shape == (0, 3)
    assert softcap_(torch.empty(0, 6), 1.0, kernel_set=TRITON).shape == (0, 6)
    none = torch.empty(0, dtype=torch.int64)
    assert embedding(none, torch.zeros(3, 6), kernel_set=TRITON).shape == (0, 6)


def test_a_row_depends_on_nothing_else(dtype: torch.dtype, same_in_any_order) -> None:
    x = torch.randn(3, 2468).to(dtype)
    ops = [
        lambda rows: silu_gated(rows, kernel_set=TRITON),
        lambda rows: gelu_tanh_gated(rows, kernel_set=TRITON),
        lambda rows: softcap_(rows.clone(), 3.0, kernel_set=TRITON),
    ]
    for op in ops:
        alone = torch.cat([op(row) for row in x.split(1)])
        assert torch.equal(alone, op(x))
        same_in_any_order(lambda op=op: op(x))
    ids = torch.randint(0, 3, (4,))
    same_in_any_order(lambda: embedding(ids, x, 2.0, kernel_set=TRITON))

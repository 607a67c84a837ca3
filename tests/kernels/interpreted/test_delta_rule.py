import math

import pytest
import torch

from kernels.delta_rule.api import DeltaRule, delta_rule, select

TRITON, REFERENCE = "triton/1", "torch-reference/1"
# Outputs and state by their largest magnitude. Each row adds sums over the key size; unit keys and
# decays below 1 keep the error of the rows before from growing. bfloat16: one rounding.
BOUND = {torch.float32: 2e-6, torch.bfloat16: 2**-8}


def by_row(*arguments: torch.Tensor) -> torch.Tensor:
    return delta_rule(*arguments, kernel_set=TRITON)


def in_chunks(*arguments: torch.Tensor) -> torch.Tensor:
    from kernels.delta_rule.kernel import delta_rule_chunked

    return delta_rule_chunked(*arguments)


def inputs(
    rows: int,
    heads: tuple[int, int],
    size: tuple[int, int],
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, ...]:
    """q, k, v, a, b as row-strided views, a_log and dt_bias, and a state that is not zero."""
    (key_heads, value_heads), (key_size, value_size) = heads, size
    widths = (key_heads * key_size, key_heads * key_size, value_heads * value_size)
    q, k, v = torch.randn(rows, sum(widths)).to(dtype).split(widths, dim=1)
    a, b = torch.randn(rows, 2 * value_heads).to(dtype).split(value_heads, dim=1)
    return (
        q.view(rows, key_heads, key_size),
        k.view(rows, key_heads, key_size),
        v.view(rows, value_heads, value_size),
        a,
        b,
        torch.empty(value_heads).uniform_(0.01, 16).log(),
        torch.randn(value_heads),
        torch.randn(value_heads, key_size, value_size),
    )


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    bound = BOUND[expected.dtype] * expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound)


def same(*arguments: torch.Tensor, form: DeltaRule = by_row) -> None:
    *parts, state = arguments
    expected_state = state.clone()
    expected = delta_rule(*parts, expected_state, kernel_set=REFERENCE)
    actual = form(*parts, state)
    assert actual.is_contiguous()
    close(actual, expected)
    close(state, expected_state)


def in_pieces(
    size: int, parts: list[torch.Tensor], start: torch.Tensor, form: DeltaRule = by_row
) -> list[torch.Tensor]:
    """What all rows read, and the state, of calls of ``size`` rows each."""
    state, outs = start.clone(), []
    for first in range(0, parts[0].shape[0], size):
        rows = [part[first : first + size] for part in parts[:5]]
        outs.append(form(*rows, *parts[5:], state))
    return [torch.cat(outs), state]


def equal(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


SLOW = pytest.mark.slow
SHAPES = [
    (1, (1, 1), (1, 1)),
    (3, (1, 2), (8, 8)),
    (2, (2, 2), (13, 7)),
    (5, (1, 3), (32, 12)),
    (1, (1, 2), (128, 16)),
    pytest.param(1, (2, 4), (128, 128), marks=SLOW),
    pytest.param(63, (1, 1), (16, 8), marks=SLOW),
    pytest.param(65, (1, 2), (16, 5), marks=SLOW),
    pytest.param(20, (1, 1), (200, 9), marks=SLOW),
]
"""Rows, key and value heads, key and value size."""


@pytest.mark.parametrize(("rows", "heads", "size"), SHAPES)
def test_equals_reference(
    rows: int, heads: tuple[int, int], size: tuple[int, int], dtype: torch.dtype
) -> None:
    same(*inputs(rows, heads, size, dtype))


def test_views_and_mixed_dtypes() -> None:
    q, k, v, a, b, a_log, dt_bias, state = inputs(8, (1, 2), (20, 8))
    same(
        q[::2, :, ::2],
        k[1::2, :, 3:13],
        v.transpose(0, 1)[:, :4].transpose(0, 1),
        a.T.contiguous().T[:4].bfloat16(),
        b[4:],
        a_log.repeat(2)[::2],
        dt_bias.flip(0),
        state[:, :10].contiguous(),
    )


def test_a_state_inside_a_larger_one_is_all_that_changes() -> None:
    *parts, start = inputs(2, (1, 1), (5, 3))
    pool = torch.randn(3, *start.shape)
    before = pool.clone()
    expected = start.clone()
    delta_rule(*parts, expected, kernel_set=TRITON)
    pool[1] = start
    delta_rule(*parts, pool[1], kernel_set=TRITON)
    assert torch.equal(pool[1], expected)
    assert torch.equal(pool[[0, 2]], before[[0, 2]])


@pytest.mark.parametrize("shift", [-9.0, 9.0])
def test_slow_and_fast_decays(shift: float) -> None:
    *parts, state = inputs(4, (1, 1), (16, 8))  # e^g of 0.999 and of 1e-40
    parts[3] = parts[3] + shift
    same(*parts, state)


def test_a_decay_near_1_keeps_its_distance_from_it() -> None:
    # log(1 + u) of a rounded 1 + u would forget a sixth more than it should, in each row.
    *parts, state = inputs(1, (1, 1), (4, 4))
    for index, value in ((3, -15.0), (4, -100.0), (5, math.log(16)), (6, 0.0)):
        parts[index] = torch.full_like(parts[index], value)
    state.fill_(1024.0)
    delta_rule(*parts, state, kernel_set=TRITON)
    expected = 1024 * -math.expm1(-16 * math.log1p(math.exp(-15)))
    assert (1024 - state).flatten().tolist() == [pytest.approx(expected, rel=0.03)] * 16


def test_no_rows_leave_the_state() -> None:
    *parts, state = inputs(0, (1, 2), (8, 8))
    before = state.clone()
    assert select(TRITON)(*parts, state).shape == (0, 2, 8)
    assert torch.equal(state, before)


def test_a_cut_of_the_rows_changes_no_bit(dtype: torch.dtype) -> None:
    *parts, start = inputs(9, (1, 1), (16, 8), dtype)
    whole = in_pieces(9, parts, start)
    for size in (1, 7, 8):
        assert equal(in_pieces(size, parts, start), whole)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(13, 7), (128, 8)])
def test_no_cut_of_many_rows_does(size: tuple[int, int], dtype: torch.dtype) -> None:
    *parts, start = inputs(70, (1, 1), size, dtype)
    whole = in_pieces(70, parts, start)
    for rows in (1, 7, 63, 64):
        assert equal(in_pieces(rows, parts, start), whole)


def test_the_heads_and_columns_beside_it_change_no_bit() -> None:
    *parts, state = inputs(3, (2, 4), (8, 17))
    together_state = state.clone()
    together = delta_rule(*parts, together_state, kernel_set=TRITON)
    q, k, v, a, b, a_log, dt_bias = parts
    head = slice(2, 3)
    alone = (q[:, 1:], k[:, 1:], v[:, head], a[:, head], b[:, head], a_log[head], dt_bias[head])
    own = state[head].contiguous()
    assert torch.equal(delta_rule(*alone, own, kernel_set=TRITON), together[:, head])
    assert torch.equal(own, together_state[head])


def test_any_order_of_programs(same_in_any_order) -> None:
    *parts, start = inputs(2, (1, 2), (8, 17))

    def op() -> tuple[torch.Tensor, torch.Tensor]:
        state = start.clone()
        return delta_rule(*parts, state, kernel_set=TRITON), state

    same_in_any_order(op)


def test_refuses_what_it_cannot_do() -> None:
    q, k, v, *rest = inputs(1, (1, 1), (257, 1))
    with pytest.raises(ValueError, match="at most 256"):
        delta_rule(q, k, v, *rest, kernel_set=TRITON)
    q, k, v, *rest = inputs(1, (1, 1), (8, 8))
    with pytest.raises(ValueError, match="one dtype"):
        delta_rule(q, k, v.bfloat16(), *rest, kernel_set=TRITON)
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        delta_rule(q.half(), k.half(), v.half(), *rest, kernel_set=TRITON)


CHUNKED_SHAPES = [
    (3, (1, 2), (8, 12)),
    (33, (1, 2), (13, 7)),
    pytest.param(1, (1, 3), (16, 40), marks=SLOW),
    pytest.param(65, (2, 4), (128, 33), marks=SLOW),
]


@pytest.mark.parametrize(("rows", "heads", "size"), CHUNKED_SHAPES)
def test_chunks_equal_reference(
    rows: int, heads: tuple[int, int], size: tuple[int, int], dtype: torch.dtype
) -> None:
    same(*inputs(rows, heads, size, dtype), form=in_chunks)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [-9.0, 0.0, 9.0])
def test_chunks_equal_rows_over_long_inputs(shift: float) -> None:
    *parts, start = inputs(130, (1, 1), (16, 8))
    parts[3] = parts[3] + shift  # decays e^g from 0.999 to 1e-40
    by_rows = in_pieces(130, parts, start)
    chunked = in_pieces(130, parts, start, in_chunks)
    for actual, expected in zip(chunked, by_rows, strict=True):
        close(actual, expected)
    assert not equal(chunked, by_rows)


def test_small_decays_among_large_ones_keep_their_differences() -> None:
    *parts, state = inputs(32, (1, 1), (8, 4))  # logarithms from 0.01 to 150 in one sum
    parts[3] = torch.where(torch.arange(32)[:, None] % 4 == 0, 9.0, -7.0)
    parts[5] = torch.full((1,), math.log(16))
    same(*parts, state, form=in_chunks)


@pytest.mark.slow
def test_equal_keys_do_not_grow_in_a_chunk() -> None:
    # Where the inverse of a chunk has the largest terms that cancel.
    q, k, v, a, b, a_log, dt_bias, state = inputs(64, (1, 1), (16, 8))
    same(q, k[:1].expand(k.shape), v, a - 20, b + 20, a_log, dt_bias, state, form=in_chunks)


def test_cuts_between_chunks_change_no_bit() -> None:
    *parts, start = inputs(40, (1, 1), (8, 4))
    whole = in_pieces(40, parts, start, in_chunks)
    assert equal(in_pieces(32, parts, start, in_chunks), whole)


@pytest.mark.slow
def test_launches_of_some_chunks_each_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    *parts, start = inputs(97, (1, 1), (8, 4))
    whole = in_pieces(97, parts, start, in_chunks)
    assert equal(in_pieces(64, parts, start, in_chunks), whole)
    monkeypatch.setattr("kernels.delta_rule.chunked_kernel._LAUNCH_CHUNKS", 2)
    assert equal(in_pieces(97, parts, start, in_chunks), whole)


@pytest.mark.slow
def test_any_order_of_programs_of_chunks(same_in_any_order) -> None:
    *parts, start = inputs(40, (1, 2), (40, 33))

    def op() -> tuple[torch.Tensor, torch.Tensor]:
        state = start.clone()
        return in_chunks(*parts, state), state

    same_in_any_order(op)


def test_chunks_of_no_rows_leave_the_state() -> None:
    *parts, state = inputs(0, (1, 2), (8, 8))
    before = state.clone()
    assert in_chunks(*parts, state).shape == (0, 2, 8)
    assert torch.equal(state, before)

import itertools

import pytest
import torch
from torch.nn import functional
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from kernels.delta_rule import cpu
from kernels.delta_rule.api import delta_rule

SETS = ("torch-cpu/1", "torch-cpu-invariant/1")
AWKWARD_ROWS = (1, 2, 3, 63, 64, 65, 200)
HEADS = [(1, 1), (2, 2), (2, 4), (1, 3), (2, 8)]
"""Key and value heads: ratios 1 to 4."""

# Outputs and state by their largest magnitude. Each row adds sums over the key size and, in a
# chunk, over 64 rows; unit keys and decays below 1 keep the error of the rows before from growing.
BOUND = 2e-6
BFLOAT16_BOUND = 2**-8
"""One rounding of the output."""
THEIR_CHUNK_BOUND = 1e-4
"""Their chunked rule subtracts float32 sums of log decays, which reach thousands."""


def inputs(
    rows: int, heads: tuple[int, int], size: tuple[int, int] = (16, 12)
) -> tuple[torch.Tensor, ...]:
    """q, k, v, a, b as row-strided views, a_log and dt_bias, and a state that is not zero."""
    (key_heads, value_heads), (key_size, value_size) = heads, size
    widths = (key_heads * key_size, key_heads * key_size, value_heads * value_size)
    q, k, v = torch.randn(rows, sum(widths)).split(widths, dim=1)
    return (
        q.view(rows, key_heads, key_size),
        k.view(rows, key_heads, key_size),
        v.view(rows, value_heads, value_size),
        torch.randn(rows, value_heads),
        torch.randn(rows, value_heads),
        torch.empty(value_heads).uniform_(0.01, 16).log(),
        torch.randn(value_heads),
        torch.randn(value_heads, key_size, value_size),
    )


def assert_close(actual: torch.Tensor, expected: torch.Tensor, bound: float = BOUND) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound * float(expected.abs().max()))


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize(
    ("rows", "heads"),
    [(rows, (2, 4)) for rows in AWKWARD_ROWS] + [(65, heads) for heads in HEADS],
)
def test_equals_reference(rows: int, heads: tuple[int, int], kernel_set: str) -> None:
    *parts, state = inputs(rows, heads)
    expected_state, again = state.clone(), state.clone()
    expected = delta_rule(*parts, expected_state, kernel_set="torch-reference/1")
    actual = delta_rule(*parts, state, kernel_set=kernel_set)
    assert_close(actual, expected)
    assert_close(state, expected_state)
    assert torch.equal(actual, delta_rule(*parts, again, kernel_set=kernel_set))
    assert torch.equal(state, again)


@pytest.mark.parametrize("rows", [1, 65])
def test_bfloat16_inputs_are_rounded_once(rows: int) -> None:
    *parts, state = inputs(rows, (2, 4))
    parts = [part.bfloat16() if part.ndim > 1 else part for part in parts]
    expected_state = state.clone()
    expected = delta_rule(*parts, expected_state, kernel_set="torch-reference/1")
    actual = delta_rule(*parts, state)
    assert actual.dtype == torch.bfloat16
    assert_close(actual, expected, BFLOAT16_BOUND)
    assert_close(state, expected_state)


@pytest.mark.parametrize("rule", [torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule])
@pytest.mark.parametrize("rows", [1, 130])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("kernel_set", ["torch-cpu/1", "torch-reference/1"])
def test_equals_transformers(rule, rows: int, heads: tuple[int, int], kernel_set: str) -> None:
    q, k, v, a, b, a_log, dt_bias, state = inputs(rows, heads)
    theirs, their_state = rule(
        q[None],
        k[None],
        v[None],
        g=-a_log.exp() * functional.softplus(a + dt_bias)[None],
        beta=b.sigmoid()[None],
        initial_state=state[None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    actual = delta_rule(q, k, v, a, b, a_log, dt_bias, state, kernel_set=kernel_set)
    bound = BOUND if rule is torch_recurrent_gated_delta_rule else THEIR_CHUNK_BOUND
    assert_close(actual, theirs[0], bound)
    assert_close(state, their_state[0], bound)


@pytest.mark.parametrize(
    ("size", "decay"),
    [((16, 12), "slow"), ((16, 12), "fast"), ((16, 12), "mixed"), ((128, 128), "mixed")],
)
def test_chunked_equals_recurrent_over_long_inputs(size: tuple[int, int], decay: str) -> None:
    *parts, state = inputs(1000, (1, 2), size)
    shift = {"slow": -9.0, "mixed": 0.0, "fast": 9.0}[decay]  # to e^g of 0.999 and of 1e-40
    parts[3] = parts[3] + shift
    recurrent_state = state.clone()
    recurrent = cpu.delta_rule_recurrent(*parts, recurrent_state)
    chunked = cpu.delta_rule_chunked(*parts, state)
    assert_close(chunked, recurrent)
    assert_close(state, recurrent_state)


@pytest.mark.parametrize("heads", [(2, 4), (1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_invariant_set_does_not_see_how_rows_are_split(
    heads: tuple[int, int], dtype: torch.dtype
) -> None:
    *parts, start = inputs(130, heads)
    parts = [part.to(dtype) if part.ndim > 1 else part for part in parts]
    whole_state = start.clone()
    whole = delta_rule(*parts, whole_state, kernel_set=SETS[1])
    for size in (1, 7, 100):
        state, outs = start.clone(), []
        for first in range(0, 130, size):
            piece = [part[first : first + size].clone() for part in parts[:5]]
            outs.append(delta_rule(*piece, *parts[5:], state, kernel_set=SETS[1]))
        assert torch.equal(torch.cat(outs), whole)
        assert torch.equal(state, whole_state)


@pytest.mark.parametrize("split", [1, 63, 64, 100])
def test_a_split_of_the_fast_set_stays_within_the_bound(split: int) -> None:
    *parts, start = inputs(150, (2, 4))
    whole_state, state = start.clone(), start.clone()
    whole = delta_rule(*parts, whole_state)
    outs = [
        delta_rule(*[part[piece] for part in parts[:5]], *parts[5:], state)
        for piece in (slice(0, split), slice(split, 150))
    ]
    assert_close(torch.cat(outs), whole)
    assert_close(state, whole_state)


def test_each_input_matters_from_its_row_on() -> None:
    *parts, start = inputs(70, (1, 2))
    before = delta_rule(*parts, start.clone())
    for index, row in itertools.product(range(5), (0, 66)):
        changed = [part.clone() for part in parts]
        changed[index][row] += 1.0
        after = delta_rule(*changed, start.clone())
        assert torch.equal(after[:row], before[:row])
        assert not torch.equal(after[row], before[row])


def test_refuses_what_does_not_fit() -> None:
    q, k, v, a, b, a_log, dt_bias, state = inputs(3, (2, 4))
    with pytest.raises(ValueError, match="multiple of 2"):
        delta_rule(q, k, v[:, :3], a, b, a_log, dt_bias, state)
    with pytest.raises(ValueError, match=r"q \[3, 2, 16\]"):
        delta_rule(q[:, :1], k, v, a, b, a_log, dt_bias, state)
    with pytest.raises(ValueError, match=r"b \[3, 4\]"):
        delta_rule(q, k, v, a, b[:2], a_log, dt_bias, state)
    with pytest.raises(ValueError, match="a_log float32"):
        delta_rule(q, k, v, a, b, a_log.bfloat16(), dt_bias, state)
    with pytest.raises(ValueError, match=r"state float32 \[4, 16, 12\]"):
        delta_rule(q, k, v, a, b, a_log, dt_bias, state.transpose(1, 2))
    with pytest.raises(ValueError, match="contiguous"):
        delta_rule(q, k, v, a, b, a_log, dt_bias, state.transpose(1, 2).contiguous().mT)

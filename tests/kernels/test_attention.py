import math

import pytest
import torch

from kernels.attention.api import attention, causal_mask

CPU = torch.device("cpu")
# float32: sums of up to 130 products in another order. bfloat16: probabilities are rounded to
# 2^-9 relative before the product with values of about 1, and the result once more.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2**-6}


def inputs(rows: int, start: int, heads: int, kv_heads: int, size: int, dtype: torch.dtype):
    cache = torch.randn(2, start + rows + 5, kv_heads, size).to(dtype)
    k, v = cache[:, : start + rows].unbind(0)  # a prefix of a longer cache, as in use
    return torch.randn(rows, heads, size).to(dtype), k, v


@pytest.mark.parametrize("start", [0, 1, 64])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 3), (9, 3), (9, 1)])
@pytest.mark.parametrize("size", [10, 64])
def test_equals_reference(
    rows: int, start: int, heads: int, kv_heads: int, size: int, dtype: torch.dtype
) -> None:
    q, k, v = inputs(rows, start, heads, kv_heads, size, dtype)
    mask = causal_mask(rows, start, dtype, CPU)
    expected = attention(q, k, v, mask, kernel_set="torch-reference/1")
    actual = attention(q, k, v, mask)
    assert actual.shape == (rows, heads * size)
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE[dtype])
    assert torch.equal(actual, attention(q, k, v, mask))


def test_reference_by_scalar_loops() -> None:
    rows, start, heads, kv_heads, size = 3, 4, 6, 2, 5
    q, k, v = inputs(rows, start, heads, kv_heads, size, torch.float32)
    actual = attention(
        q, k, v, causal_mask(rows, start, torch.float32, CPU), kernel_set="torch-reference/1"
    )
    for row in range(rows):
        for head in range(heads):
            kv_head = head // 3
            weights = [
                math.exp(float(q[row, head] @ k[position, kv_head]) / math.sqrt(size))
                for position in range(start + row + 1)
            ]
            mixed = sum(
                weight * v[position, kv_head] for position, weight in enumerate(weights)
            ) / sum(weights)
            torch.testing.assert_close(
                actual[row, head * size : (head + 1) * size], mixed, rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("start", [0, 1, 7])
def test_mask_hides_exactly_the_later_positions(start: int) -> None:
    mask = causal_mask(4, start, torch.float32, CPU)
    assert mask is not None
    for row in range(4):
        for position in range(start + 4):
            assert mask[row, position] == (0.0 if position <= start + row else -math.inf)
    assert causal_mask(1, start, torch.float32, CPU) is None


def test_later_keys_change_nothing(dtype: torch.dtype) -> None:
    q, k, v = inputs(4, 9, 6, 2, 8, dtype)
    mask = causal_mask(4, 9, dtype, CPU)
    before = attention(q, k, v, mask)
    k[-1], v[-1] = 50.0, -50.0
    after = attention(q, k, v, mask)
    assert torch.equal(before[:3], after[:3])
    assert not torch.equal(before[3], after[3])


def test_refuses_what_does_not_fit() -> None:
    q, k, v = inputs(2, 0, 6, 2, 8, torch.float32)
    with pytest.raises(ValueError, match="multiple of KV heads"):
        attention(q[:, :5], k, v, None)
    with pytest.raises(ValueError, match=r"mask \[2, 2\]"):
        attention(q, k, v, torch.zeros(2, 3))
    with pytest.raises(ValueError, match="one dtype"):
        attention(q, k.bfloat16(), v.bfloat16(), None)
    with pytest.raises(ValueError, match="k and v"):
        attention(q, k, v[:-1], None)

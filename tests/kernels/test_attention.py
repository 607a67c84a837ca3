import math

import pytest
import torch

import kernels.attention.api as attention

CPU = torch.device("cpu")
SETS = ("torch-cpu/1", "torch-cpu-invariant/1")
# float32: sums of up to 512 products of a score, whose error multiplies a probability, in another
# order. bfloat16: probabilities are rounded to 2^-9 relative before the product with values of
# about 1, and the result once more.
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2**-6}


def inputs(rows: int, start: int, heads: int, kv_heads: int, size: int, dtype: torch.dtype):
    cache = torch.randn(2, start + rows + 5, kv_heads, size).to(dtype)
    k, v = cache[:, : start + rows].unbind(0)  # a prefix of a longer cache, as in use
    return torch.randn(rows, heads, size).to(dtype), k, v


def run(q, k, v, start: int, kernel_set: str, *, first: int = 0, window=None, scale=None, cap=None):
    context = attention.select(kernel_set).prepare(
        q.shape[0], start, dtype=q.dtype, device=CPU, first_position=first, window=window
    )
    scale = q.shape[2] ** -0.5 if scale is None else scale
    return attention.attend(q, k, v, context, scale, cap, kernel_set=kernel_set)


@pytest.mark.parametrize("start", [0, 1, 64])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 3), (9, 3), (9, 1)])
@pytest.mark.parametrize("size", [10, 64])
def test_equals_reference(
    rows: int, start: int, heads: int, kv_heads: int, size: int, dtype: torch.dtype
) -> None:
    q, k, v = inputs(rows, start, heads, kv_heads, size, dtype)
    expected = run(q, k, v, start, "torch-reference/1")
    for kernel_set in SETS:
        actual = run(q, k, v, start, kernel_set)
        assert actual.shape == (rows, heads * size)
        torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE[dtype])
        assert torch.equal(actual, run(q, k, v, start, kernel_set))


@pytest.mark.parametrize(("rows", "start"), [(1, 0), (1, 63), (1, 64), (1, 65), (3, 63), (129, 0)])
@pytest.mark.parametrize("window", [1, 2, 64, 65, 129, 500])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 1, 256), (2, 1, 512), (4, 2, 10)])
def test_window_equals_reference(
    rows: int,
    start: int,
    window: int,
    heads: int,
    kv_heads: int,
    size: int,
    dtype: torch.dtype,
) -> None:
    q, k, v = inputs(rows, start, heads, kv_heads, size, dtype)
    expected = run(q, k, v, start, "torch-reference/1", window=window)
    first = max(0, start - window + 1)
    for kernel_set in SETS:
        actual = run(q, k, v, start, kernel_set, window=window)
        torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE[dtype])
        evicted = run(q, k[first:], v[first:], start, kernel_set, first=first, window=window)
        assert torch.equal(actual, evicted)


@pytest.mark.parametrize("rows", [1, 65])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(("scale", "cap"), [(1.0, None), (0.3, 2.0), (1.0, 50.0)])
@pytest.mark.parametrize("kernel_set", SETS)
def test_scale_and_softcap_equal_reference(
    rows: int, window, scale: float, cap: float | None, dtype: torch.dtype, kernel_set: str
) -> None:
    q, k, v = inputs(rows, 40, 6, 2, 64, dtype)
    expected = run(q, k, v, 40, "torch-reference/1", window=window, scale=scale, cap=cap)
    actual = run(q, k, v, 40, kernel_set, window=window, scale=scale, cap=cap)
    # Scores of up to about 40: their float32 error is that much larger than those of about 1.
    tolerance = 4e-5 if dtype == torch.float32 else 2**-6
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("cap", [None, 0.7])
def test_reference_by_scalar_loops(window: int | None, cap: float | None) -> None:
    rows, start, heads, kv_heads, size = 3, 4, 6, 2, 5
    q, k, v = inputs(rows, start, heads, kv_heads, size, torch.float32)
    actual = run(q, k, v, start, "torch-reference/1", window=window, scale=0.4, cap=cap)
    for row in range(rows):
        last = start + row
        first = 0 if window is None else max(0, last - window + 1)
        for head in range(heads):
            kv_head = head // 3
            scores = [
                0.4 * float(q[row, head] @ k[position, kv_head])
                for position in range(first, last + 1)
            ]
            if cap is not None:
                scores = [cap * math.tanh(score / cap) for score in scores]
            weights = [math.exp(score) for score in scores]
            mixed = sum(
                weight * v[first + offset, kv_head] for offset, weight in enumerate(weights)
            ) / sum(weights)
            torch.testing.assert_close(
                actual[row, head * size : (head + 1) * size], mixed, rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("window", [None, 1, 3, 8])
@pytest.mark.parametrize("start", [0, 1, 7])
def test_mask_hides_exactly_what_a_row_does_not_read(start: int, window: int | None) -> None:
    op = attention.select("torch-cpu/1")
    context = op.prepare(4, start, dtype=torch.float32, device=CPU, window=window)
    assert context.mask is not None
    base = 0 if window is None else max(0, start - window + 1)
    assert context.mask.shape == (4, start + 4 - base)
    for row in range(4):
        for position in range(base, start + 4):
            read = position <= start + row and (window is None or position > start + row - window)
            assert context.mask[row, position - base] == (0.0 if read else -math.inf)
    assert op.prepare(1, start, dtype=torch.float32, device=CPU).mask is None


@pytest.mark.parametrize("kernel_set", [*SETS, "torch-reference/1"])
def test_a_row_reads_its_window_and_nothing_else(kernel_set: str, dtype: torch.dtype) -> None:
    q, k, v = inputs(4, 9, 6, 2, 8, dtype)
    before = run(q, k, v, 9, kernel_set, window=3)
    for position in range(13):
        changed_k, changed_v = k.clone(), v.clone()
        changed_k[position], changed_v[position] = 50.0, -50.0
        after = run(q, changed_k, changed_v, 9, kernel_set, window=3)
        for row in range(4):
            reads = 9 + row - 2 <= position <= 9 + row
            assert torch.equal(before[row], after[row]) == (not reads), (position, row)


@pytest.mark.parametrize("kernel_set", [*SETS, "torch-reference/1"])
@pytest.mark.parametrize(("rows", "start", "window"), [(1, 30, None), (5, 30, 8), (5, 30, None)])
def test_slot_table_equals_positions_in_order(
    rows: int, start: int, window: int | None, kernel_set: str, dtype: torch.dtype
) -> None:
    q, k, v = inputs(rows, start, 6, 2, 64, dtype)
    first = 0 if window is None else start - window + 1
    op = attention.select(kernel_set)
    context = op.prepare(rows, start, dtype=dtype, device=CPU, first_position=first, window=window)
    expected = op.attend(q, k[first:], v[first:], context, 0.125)
    slots = torch.randperm(80)[: k.shape[0]]
    k_cache, v_cache = torch.full((2, 80, 2, 64), 99.0, dtype=dtype).unbind(0)
    k_cache[slots], v_cache[slots] = k, v
    paged = attention.paged_attention(
        q, k_cache, v_cache, slots[first:], context, 0.125, kernel_set=kernel_set
    )
    assert torch.equal(paged, expected)


def test_refuses_what_does_not_fit() -> None:
    q, k, v = inputs(2, 0, 6, 2, 8, torch.float32)
    context = attention.select("torch-cpu/1").prepare(2, 0, dtype=torch.float32, device=CPU)

    def refused(match: str, q=q, k=k, v=v, context=context, **more) -> None:
        with pytest.raises(ValueError, match=match):
            attention.attend(q, k, v, context, 1.0, **more)

    refused("multiple of KV heads", q=q[:, :5])
    refused("one dtype", k=k.bfloat16(), v=v.bfloat16())
    refused("k and v", v=v[:-1])
    refused(r"k and v \[2, 2, 8\]", k=torch.zeros(3, 2, 8), v=torch.zeros(3, 2, 8))
    refused("2 rows of q", q=q[:1])
    refused("mask of torch.bfloat16", q=q.bfloat16(), k=k.bfloat16(), v=v.bfloat16())
    refused("softcap above 0", softcap=0.0)
    unmasked = attention.select("torch-reference/1").prepare(2, 0, dtype=torch.float32, device=CPU)
    refused("no mask", context=unmasked)
    with pytest.raises(ValueError, match=r"slots \[2\]"):
        attention.paged_attention(q, k, v, torch.arange(1), context, 1.0)
    with pytest.raises(ValueError, match=r"slots in \[0, 2\)"):
        attention.paged_attention(q, k, v, torch.arange(1, 3), context, 1.0)


@pytest.mark.parametrize("kernel_set", [*SETS, "torch-reference/1"])
def test_refuses_positions_that_are_gone_or_nonsense(kernel_set: str) -> None:
    prepare = attention.select(kernel_set).prepare

    def refused(match: str, rows: int, start: int, **more) -> None:
        with pytest.raises(ValueError, match=match):
            prepare(rows, start, dtype=torch.float32, device=CPU, **more)

    refused("keys from position 3 or before", 4, 10, window=8, first_position=4)
    refused("keys from position 0 or before", 4, 10, first_position=1)
    refused("keys from", 4, 10, window=8, first_position=-1)
    refused("one row or more", 0, 10)
    refused("one row or more", 1, -1)
    refused("window of 1", 1, 10, window=0)
    for first in (0, 3):
        context = prepare(4, 10, dtype=torch.float32, device=CPU, window=8, first_position=first)
        assert context.num_positions == 14 - first
        assert context.read_by(3) == (6 - first, 14 - first)

import pytest
import torch

import kernels.attention.api as attention
from kernels import configurations

CPU = torch.device("cpu")
TRITON, REFERENCE = "triton/1", "torch-reference/1"
# float32: sums of up to 512 products of a score, whose error multiplies a probability, in another
# order; exp2 of a rounded exponent. bfloat16: probabilities are rounded to 2^-9 relative before
# the product with values of about 1 to 4, and the result once more.
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2**-6}


def inputs(rows: int, start: int, heads: int, kv_heads: int, size: int, dtype: torch.dtype):
    cache = torch.randn(2, start + rows + 5, kv_heads, size).to(dtype)
    k, v = cache[:, : start + rows].unbind(0)
    return torch.randn(rows, heads, size).to(dtype), k, v


def run(q, k, v, start: int, kernel_set=TRITON, *, first=0, window=None, cap=None, slots=None):
    op = attention.select(kernel_set)
    context = op.prepare(
        q.shape[0], start, dtype=q.dtype, device=CPU, first_position=first, window=window
    )
    if slots is None:
        return op.attend(q, k, v, context, q.shape[2] ** -0.5, cap)
    return op.paged(q, k, v, slots, context, q.shape[2] ** -0.5, cap)


def in_cache(k, v, page_size: int):
    """Keys and values of pages in random order with unused pages between, full of large values."""
    num_pages = -(-k.shape[0] // page_size)
    pages = torch.randperm(2 * num_pages)[:num_pages]
    slots = (pages[:, None] * page_size + torch.arange(page_size)).flatten()[: k.shape[0]]
    shape = (2, 2 * num_pages * page_size, *k.shape[1:])
    k_cache, v_cache = torch.full(shape, 99.0, dtype=k.dtype).unbind(0)
    k_cache[slots], v_cache[slots] = k, v
    return k_cache, v_cache, slots


def slow(*case: object) -> object:
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("rows", "start", "heads", "kv_heads", "size", "window", "cap"),
    [
        (1, 0, 1, 1, 64, None, None),
        (1, 511, 6, 3, 10, None, None),
        (3, 510, 9, 3, 64, None, 5.0),
        (63, 2, 2, 1, 64, 1, None),
        (5, 123, 4, 1, 256, 65, 50.0),
        (1, 1030, 2, 1, 512, 40, None),
        (1, 1100, 8, 1, 128, 100, None),
        (1, 30, 3, 1, 16, None, None),
        slow(65, 63, 2, 1, 80, 64, None),
        slow(3, 700, 2, 1, 512, 600, None),
        slow(2, 30, 71, 1, 16, None, None),
        slow(129, 450, 6, 2, 128, 129, 2.0),
        slow(3, 1600, 16, 2, 256, None, None),
        slow(65, 65, 9, 1, 32, 2, None),
    ],
)
def test_equals_reference(
    rows: int, start: int, heads: int, kv_heads: int, size: int, window, cap, dtype: torch.dtype
) -> None:
    q, k, v = inputs(rows, start, heads, kv_heads, size, dtype)
    expected = run(q, k, v, start, REFERENCE, window=window, cap=cap)
    actual = run(q, k, v, start, window=window, cap=cap)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("position", "window"), [(0, None), (511, None), (1100, None), (40, 65), (600, 40)]
)
def test_one_launch_serves_every_position(position: int, window: int | None) -> None:
    capacity, dtype = 1200, torch.float32
    q, k, v = inputs(1, position, 4, 2, 64, dtype)
    expected = run(q, k, v, position, window=window)
    op = attention.select(TRITON)
    assert op.prepare_at is not None
    place = torch.tensor([position])
    # What lies beyond is another session's, and what lies before the window may be gone.
    caches = torch.full((2, capacity, 2, 64), float("nan"))
    first = 0 if window is None else max(0, position - window + 1)
    caches[0, first : position + 1] = k[first:]
    caches[1, first : position + 1] = v[first:]
    context = op.prepare_at(place, num_positions=capacity, window=window)
    actual = op.attend(q, caches[0], caches[1], context, 64**-0.5)
    assert torch.equal(actual, expected)
    slots = torch.arange(capacity)
    slots[position + 1 :] = slots[:first] = 1 << 40
    assert torch.equal(op.paged(q, caches[0], caches[1], slots, context, 64**-0.5), expected)


@pytest.mark.parametrize(
    ("page_size", "rows", "start", "window"),
    [
        (1, 5, 0, None),
        (16, 1, 530, 60),
        (1, 9, 505, 40),
        slow(16, 33, 500, 40),
        slow(1, 1, 530, None),
        slow(16, 5, 700, None),
    ],
)
def test_a_slot_table_with_holes_has_the_bits_of_positions_in_order(
    page_size: int, rows: int, start: int, window: int | None, dtype: torch.dtype
) -> None:
    q, k, v = inputs(rows, start, 4, 2, 64, dtype)
    expected = run(q, k, v, start, window=window)
    k_cache, v_cache, slots = in_cache(k, v, page_size)
    assert torch.equal(run(q, k_cache, v_cache, start, window=window, slots=slots), expected)
    if window is not None:  # what no row reads is gone, and the table begins later
        first = start - window + 1
        more = {"first": first, "window": window}
        assert torch.equal(run(q, k[first:], v[first:], start, **more), expected)
        paged = run(q, k_cache, v_cache, start, slots=slots[first:], **more)
        assert torch.equal(paged, expected)


@pytest.mark.parametrize(
    ("rows", "window", "cap", "heads"),
    [(67, 40, None, 3), slow(67, None, 5.0, 6), slow(300, None, None, 3), slow(300, 129, None, 9)],
)
def test_bits_do_not_depend_on_the_chunking(
    rows: int, window: int | None, cap, heads: int, dtype: torch.dtype
) -> None:
    start = 480  # the rows lie on both sides of the first run's end
    q, k, v = inputs(rows, start, heads, heads // 3, 64, dtype)
    one_shot = run(q, k, v, start, window=window, cap=cap)
    for size in (1, 13, 64):
        at = range(0, rows, size) if size > 13 else range(0, rows, 2 * 13)
        for first in at:
            rows_of = slice(first, min(first + size, rows))
            end = start + rows_of.stop
            part = run(q[rows_of], k[:end], v[:end], start + first, window=window, cap=cap)
            assert torch.equal(part, one_shot[rows_of]), (size, first)


def test_bits_do_not_depend_on_the_workspace(dtype: torch.dtype, monkeypatch) -> None:
    q, k, v = inputs(9, 510, 2, 1, 16, dtype)
    expected = run(q, k, v, 510, window=40)
    rows, splits = 4, 2
    monkeypatch.setattr(configurations, "ATTENTION_WORKSPACE_BYTES", rows * splits * 2 * 18 * 4)
    assert torch.equal(run(q, k, v, 510, window=40), expected)


def test_a_row_reads_its_window_and_nothing_else(dtype: torch.dtype) -> None:
    q, k, v = inputs(4, 9, 6, 2, 16, dtype)
    before = run(q, k, v, 9, window=3)
    for position in (0, 6, 7, 8, 9, 11, 12):
        changed_k, changed_v = k.clone(), v.clone()
        changed_k[position], changed_v[position] = 50.0, -50.0
        after = run(q, changed_k, changed_v, 9, window=3)
        for row in range(4):
            reads = 9 + row - 2 <= position <= 9 + row
            assert torch.equal(before[row], after[row]) == (not reads), (position, row)


def test_reads_views(dtype: torch.dtype) -> None:
    fused = torch.randn(7, 10, 72).to(dtype)
    q, k, v = fused[:, :6, 3:67], fused[:, 6:8, 8:72], fused[:, 8:, :64]
    expected = run(q.contiguous(), k.contiguous(), v.contiguous(), 0)
    assert torch.equal(run(q, k, v, 0), expected)


def test_any_order_of_programs(same_in_any_order, dtype: torch.dtype) -> None:
    q, k, v = inputs(18, 500, 4, 2, 16, dtype)
    same_in_any_order(lambda: run(q, k, v, 500, window=40))


def test_refuses_larger_heads() -> None:
    with pytest.raises(ValueError, match="at most 512"):
        run(*inputs(1, 0, 1, 1, 513, torch.float32), 0)

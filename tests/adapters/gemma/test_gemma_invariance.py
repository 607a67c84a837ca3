"""Repeats of one partition of a prompt, and what different partitions have in common.

The lengths lie on both sides of the chunk's 64 rows and its multiples; the window of 48 is passed
by every one of them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

LENGTHS = (53, 64, 65, 66, 67, 128, 129, 257)
LONG = (600, 1000)
CPU, INVARIANT = "torch-cpu/1", "torch-cpu-invariant/1"
SMALL: dict[str, Any] = {
    "num_hidden_layers": 2,
    "sliding_window": 48,
    "layer_types": ["sliding_attention", "full_attention"],
}


def ids_of(length: int) -> list[int]:
    return [(5 * i * i + 3 * i + 2) % 53 for i in range(length)]


def prefill(
    executor: Any, length: int, rows: int, start: int = 0
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits of the last row and all declared tensors, after prefill in chunks of ``rows``."""
    ids, logits = ids_of(length), None
    if not start:
        executor.reset()
    for begin in range(start, length, rows):
        end = min(begin + rows, length)
        logits = executor.step(ids[begin:end], begin, want_logits=end == length).logits
    assert logits is not None
    return logits, {name: t.clone() for name, t in executor.declared_state().items()}


def differences(one: Any, other: Any) -> list[str]:
    """Names of what is not bitwise equal: ``logits`` and declared tensors."""
    names = [] if torch.equal(one[0], other[0]) else ["logits"]
    return names + [name for name, t in one[1].items() if not torch.equal(t, other[1][name])]


def token_by_token(executor: Any, lengths: tuple[int, ...]) -> Iterator[tuple[int, Any]]:
    """The prefill of every length in one pass of single rows."""
    executor.reset()
    start = 0
    for length in lengths:
        yield length, prefill(executor, length, 1, start)
        start = length


def check_invariance(executor: Any, lengths: tuple[int, ...]) -> None:
    for length, expected in token_by_token(executor, lengths):
        state = {name: t.clone() for name, t in executor.declared_state().items()}
        for rows in (64, 7, length):
            found = prefill(executor, length, rows)
            assert differences(found, expected) == [], f"{length} tokens in chunks of {rows}"
        for name, tensor in executor.declared_state().items():
            tensor.copy_(state[name])
        executor.restore_frontier(length)


@pytest.mark.parametrize(("generation", "dtype"), [(3, "float32"), (4, "bfloat16")])
def test_chunks_of_64_repeat_bitwise(
    make_gemma: Callable[..., Any],
    gemma_executor: Callable[..., Any],
    generation: int,
    dtype: str,
) -> None:
    bench = make_gemma(generation, **SMALL)
    settings = {"dtype": dtype, "kernel_set": CPU, "max_positions": 260}
    executors = [gemma_executor(bench, **settings) for _ in range(2)]
    for length in LENGTHS:
        first, second = (prefill(executor, length, 64) for executor in executors)
        assert differences(first, second) == [], length
        assert differences(prefill(executors[0], length, 64), first) == [], length


@pytest.mark.parametrize(
    ("generation", "dtype", "page_size", "lengths"),
    [(3, "float32", None, (65, 129)), (4, "bfloat16", 16, (53, 67))],
)
def test_any_partition_gives_equal_bits_in_the_invariant_set(
    make_gemma: Callable[..., Any],
    gemma_executor: Callable[..., Any],
    generation: int,
    dtype: str,
    page_size: int | None,
    lengths: tuple[int, ...],
) -> None:
    bench = make_gemma(generation, **SMALL)
    executor = gemma_executor(
        bench, dtype=dtype, kernel_set=INVARIANT, max_positions=140, page_size=page_size
    )
    check_invariance(executor, lengths)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("generation", "dtype", "page_size"),
    [
        (3, "float32", 16),
        pytest.param(3, "bfloat16", None, marks=pytest.mark.long),
        pytest.param(4, "float32", None, marks=pytest.mark.long),
        (4, "bfloat16", 16),
    ],
)
def test_any_partition_of_a_long_prompt_gives_equal_bits_in_the_invariant_set(
    make_gemma: Callable[..., Any],
    gemma_executor: Callable[..., Any],
    generation: int,
    dtype: str,
    page_size: int | None,
) -> None:
    bench = make_gemma(generation, **SMALL)
    settings: dict[str, Any] = {"dtype": dtype, "max_positions": 1003, "page_size": page_size}
    check_invariance(gemma_executor(bench, kernel_set=INVARIANT, **settings), (*LENGTHS, *LONG))
    fast = gemma_executor(bench, **settings)
    for length in LONG:
        assert differences(prefill(fast, length, 64), prefill(fast, length, 64)) == []


def test_the_fast_set_differs_in_float32_between_one_shot_and_token_by_token(
    make_gemma: Callable[..., Any], gemma_executor: Callable[..., Any]
) -> None:
    """What the invariant set is for: here 67 tokens at once and one by one differ."""
    bench = make_gemma(3, **SMALL)
    executor = gemma_executor(bench, kernel_set=CPU, max_positions=70)
    once, single = prefill(executor, 67, 67), prefill(executor, 67, 1)
    found = differences(once, single)
    assert {"logits", "swa.k", "full.k"} <= set(found)
    # The difference is one of rounding, and the mapping has none.
    assert not set(found) - {"logits", "swa.k", "swa.v", "full.k", "full.v"}
    torch.testing.assert_close(once[0], single[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize(("generation", "dtype"), [(3, "bfloat16"), (4, "float32")])
def test_eviction_changes_no_bit_in_the_invariant_set(
    make_gemma: Callable[..., Any],
    gemma_executor: Callable[..., Any],
    generation: int,
    dtype: str,
    page_size: int | None,
) -> None:
    bench = make_gemma(generation, **(SMALL | {"sliding_window": 8}))
    (policy,) = bench.layout.eviction_policies
    settings = {
        "dtype": dtype,
        "kernel_set": INVARIANT,
        "max_positions": 90,
        "page_size": page_size,
        "chunk_rows": 7,
    }
    kept = gemma_executor(bench, **settings)
    evicting = gemma_executor(bench, eviction_policy=policy, **settings)
    ids = ids_of(80)
    for start in [*range(0, 63, 7), *range(63, 80)]:
        rows = ids[start : start + 7] if start < 63 else ids[start : start + 1]
        expected = kept.step(rows, start, want_logits=True)
        found = evicting.step(rows, start, want_logits=True)
        assert torch.equal(found.plane, expected.plane), start
        assert torch.equal(found.logits, expected.logits), start
        assert [f for report in evicting.ownership() for f in report.faults()] == []
    for part in ("full.k", "full.v"):
        assert torch.equal(evicting.declared_state()[part], kept.declared_state()[part])
    reports = {report.pool: report for report in evicting.ownership()}
    assert reports["swa"].num_evicted > 60
    small = evicting.declared_state()["swa.k"].shape[1]
    assert small < 8 + 7 + 2 * (page_size or 1) + 4 < kept.declared_state()["swa.k"].shape[1]

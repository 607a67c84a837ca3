import random
from collections import Counter
from typing import Any

import pytest

from harness.reading.bars import Row
from harness.reading.figures import edges, histogram, ledger_over_lifecycle, step_times


def ledger_row(point: str, memory: str, requested: int) -> dict[str, Any]:
    return {
        "point": point,
        "memory_resource_id": memory,
        "requested_bytes": requested,
        "allocated_bytes": requested + 1,
    }


def arena(point: str, memory: str, resident: int) -> dict[str, Any]:
    return {"point": point, "memory_resource_id": memory, "resident_bytes": resident}


def test_a_ledger_is_by_memory_and_in_order_of_the_lifecycle() -> None:
    ledger = [
        ledger_row("baseline", "ram", 0),
        ledger_row("baseline", "vram", 0),
        ledger_row("after_decode", "ram", 10),
        ledger_row("after_decode", "vram", 20),
    ]
    arenas = [arena("after_decode", "ram", 3), arena("after_decode", "ram", 4)]
    assert ledger_over_lifecycle(ledger, arenas) == {
        "ram": [
            Row(label="baseline", values=(0, 1, 0)),
            Row(label="after_decode", values=(10, 11, 7)),
        ],
        # Nobody looked at its pages: that is not the same as none.
        "vram": [
            Row(label="baseline", values=(0, 1, None)),
            Row(label="after_decode", values=(20, 21, None)),
        ],
    }


def time_row(phase: str, duration_ns: int, sentinel_ns: int = 0) -> dict[str, Any]:
    return {"phase": phase, "duration_ns": duration_ns, "sentinel_ns": sentinel_ns}


def test_step_times_are_by_process_and_phase() -> None:
    decode = [time_row("decode", ms * 1_000_000, 500_000) for ms in (4, 1, 3, 2)]
    first, second, third = step_times({0: [time_row("prefill", 9_000_000), *decode], 1: decode[:1]})
    assert (first.phase, first.num_steps, first.median_ms) == ("prefill", 1, 9)
    assert (second.min_ms, second.median_ms, second.p95_ms, second.max_ms) == (1, 2, 4, 4)
    assert second.sentinel_share == pytest.approx(0.2)
    assert (third.realization, third.num_steps) == (1, 1)
    assert step_times({}) == []
    assert step_times({0: [time_row("decode", 0)]})[0].sentinel_share is None


@pytest.mark.parametrize("seed", range(5))
def test_a_histogram_counts_every_sample_once_where_it_belongs(seed: int) -> None:
    chosen = random.Random(seed)
    groups = [[chosen.randrange(1, 5_000_000) for _ in range(150)] for _ in range(3)]
    bins = edges(sample for group in groups for sample in group)
    rows = histogram(groups, bins)
    for place, group in enumerate(groups):
        counts = [row.values[place] for row in rows]
        assert sum(counts) == len(group)
        # An own way to say where a sample belongs; the last edge closes the last bin.
        expected = Counter(
            len(bins) - 1
            if sample > bins[-1]
            else min(sum(sample >= edge for edge in bins), len(bins) - 1) - 1
            for sample in group
        )
        assert counts == [expected[index] for index in range(len(rows))]


def test_few_and_equal_samples_have_a_histogram_too() -> None:
    assert edges([]) == []
    assert histogram([[]], []) == []
    assert [row.values for row in histogram([[5, 5], [5]], edges([5, 5, 5]))] == [(2, 1)]
    rows = histogram([[1] * 198 + [2, 1000]], edges([1] * 198 + [2, 1000]))
    assert rows[-1].label.startswith("above")
    assert rows[-1].values == (2,)

"""The figures of one record that a page draws: bytes per memory, the lifecycle, step times.

Pure functions over rows. Knows the declared tables, nothing of pictures and nothing of verdicts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.evidence.record import LoadedRecord
from harness.reading.bars import Row

Rows = Sequence[Mapping[str, Any]]
LEDGER_SERIES = ("requested", "allocated", "resident")
BYTES_SERIES = ("planned", "observed")
DECODE = "decode"
_NUM_BINS = 20
_NS_PER_MS = 1e6


def planned_and_observed(record: LoadedRecord) -> list[Row]:
    """One row per memory: bytes of persistent state as planned and as observed."""
    totals = record.predicate.totals
    planned, observed = totals["planned_bytes"], totals["observed_bytes"]
    return [
        Row(label=memory, values=(planned.get(memory, 0), observed.get(memory, 0)))
        for memory in sorted({*planned, *observed})
    ]


def ledger_over_lifecycle(ledger: Rows, arenas: Rows) -> dict[str, list[Row]]:
    """By memory, one row per point of the lifecycle: :data:`LEDGER_SERIES` in bytes.

    Resident bytes are the witness's, summed over the arenas of a memory; ``None`` for a memory in
    which it never saw one.
    """
    resident: dict[tuple[str, str], int] = {}
    for row in arenas:
        place = row["memory_resource_id"], row["point"]
        resident[place] = resident.get(place, 0) + row["resident_bytes"]
    witnessed = {memory for memory, _ in resident}
    found: dict[str, list[Row]] = {}
    for row in ledger:
        memory = row["memory_resource_id"]
        seen = resident.get((memory, row["point"]), 0) if memory in witnessed else None
        values = (row["requested_bytes"], row["allocated_bytes"], seen)
        found.setdefault(memory, []).append(Row(label=row["point"], values=values))
    return dict(sorted(found.items()))


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Durations of the steps of one phase in one realization, in milliseconds."""

    realization: int
    phase: str
    num_steps: int
    min_ms: float
    median_ms: float
    p95_ms: float
    max_ms: float
    sentinel_share: float | None
    """Time of digests and counters, which is apart, over that of the steps."""


def step_times(tables: Mapping[int | None, Rows]) -> list[StepTimes]:
    """Summaries by realization and phase, in order of appearance; percentiles by nearest rank."""
    found = []
    for realization, rows in tables.items():
        for phase in dict.fromkeys(row["phase"] for row in rows):
            part = [row for row in rows if row["phase"] == phase]
            times = sorted(row["duration_ns"] for row in part)
            total = sum(times)
            share = sum(row["sentinel_ns"] for row in part) / total if total > 0 else None
            found.append(
                StepTimes(
                    realization=realization or 0,
                    phase=phase,
                    num_steps=len(times),
                    min_ms=times[0] / _NS_PER_MS,
                    median_ms=_rank(times, 0.5) / _NS_PER_MS,
                    p95_ms=_rank(times, 0.95) / _NS_PER_MS,
                    max_ms=times[-1] / _NS_PER_MS,
                    sentinel_share=share,
                )
            )
    return found


def decode_times(tables: Mapping[int | None, Rows]) -> list[list[int]]:
    """Durations of decode steps in ns, by realization."""
    return [
        [row["duration_ns"] for row in rows if row["phase"] == DECODE] for rows in tables.values()
    ]


def edges(samples: Iterable[int]) -> list[float]:
    """Edges of equal bins from the least sample to the 99th percentile; empty without samples."""
    ordered = sorted(samples)
    if not ordered:
        return []
    low, high = ordered[0], _rank(ordered, 0.99)
    count = _NUM_BINS if high > low else 1
    return [low + (high - low) * index / count for index in range(count + 1)]


def histogram(groups: Sequence[Sequence[int]], bins: Sequence[float]) -> list[Row]:
    """How many samples of each group lie in each bin, and above the last, where any does."""
    if not bins:
        return []
    counts = [[0] * len(groups) for _ in bins]
    for place, group in enumerate(groups):
        for sample in group:
            counts[_bin(sample, bins)][place] += 1
    labels = [f"{low / 1e6:.3f} - {high / 1e6:.3f} ms" for low, high in pairwise(bins)]
    labels.append(f"above {bins[-1] / 1e6:.3f} ms")
    rows = [Row(label=label, values=tuple(row)) for label, row in zip(labels, counts, strict=True)]
    return rows if any(counts[-1]) else rows[:-1]


def _bin(sample: int, bins: Sequence[float]) -> int:
    if sample > bins[-1]:
        return len(bins) - 1
    width = (bins[-1] - bins[0]) / (len(bins) - 1)
    return 0 if width <= 0 else min(max(int((sample - bins[0]) / width), 0), len(bins) - 2)


def _rank(ordered: Sequence[int], share: float) -> int:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

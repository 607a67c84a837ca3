"""How a prompt is cut into prefill chunks: half-open intervals of positions.

Either every chunk but the last has ``chunk_rows`` rows, or the plan lists the intervals itself.
"""

from collections.abc import Iterator

from harness.plan.records import Workload

Interval = tuple[int, int]
"""[start, end) of positions."""


def prefill_partition(workload: Workload) -> tuple[Interval, ...]:
    """The prefill chunks of a workload that passed :func:`partition_faults`, in order."""
    if workload.prefill_partition is not None:
        return tuple((start, end) for start, end in workload.prefill_partition)
    prompt, rows = len(workload.prompt_token_ids), workload.chunk_rows
    return tuple((start, min(start + rows, prompt)) for start in range(0, prompt, rows))


def partition_faults(workload: Workload) -> Iterator[tuple[int, str]]:
    """Every way in which a listed partition is not ordered, gap-free and complete, by index."""
    if workload.prefill_partition is None:
        return
    prompt, expected = len(workload.prompt_token_ids), 0
    for index, interval in enumerate(workload.prefill_partition):
        if len(interval) != 2 or not all(type(bound) is int for bound in interval):
            yield index, f"{list(interval)} is not [start, end] of two integers"
            continue
        start, end = interval
        if start != expected:
            yield index, f"starts at {start}, expected {expected}: ordered and without a gap"
        if end <= start:
            yield index, f"[{start}, {end}) holds no row"
        elif end - start > workload.chunk_rows:
            yield index, f"[{start}, {end}) has more than chunk_rows = {workload.chunk_rows} rows"
        expected = end
    if expected != prompt:
        last = max(0, len(workload.prefill_partition) - 1)
        yield last, f"ends at {expected}, expected {prompt}, the end of the prompt"

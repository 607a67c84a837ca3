"""What observing cost: time of digests beside the unarmed step. Pure functions over rows."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def digest_shares(armed: Sequence[Row], unarmed: Sequence[Row]) -> dict[str, float]:
    """By phase, the median share that digests take of the unarmed step of the same place.

    Args:
        armed: Rows of ``armed_times`` of one process.
        unarmed: Rows of ``step_times`` of the same one.
    """
    durations: dict[tuple[str, int], list[int]] = {}
    for row in unarmed:
        durations.setdefault((row["phase"], row["step"]), []).append(row["duration_ns"])
    shares: dict[str, list[float]] = {}
    for row in armed:
        known = durations.get((row["phase"], row["step"]))
        if known:
            share = row["digest_ns"] / max(1.0, statistics.median(known))
            shares.setdefault(row["phase"], []).append(share)
    return {phase: statistics.median(found) for phase, found in shares.items()}

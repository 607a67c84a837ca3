"""Time: durations from a monotonic clock in nanoseconds, timestamps in UTC.

The two never mix: a duration is a difference of :func:`monotonic_ns`, and a timestamp says when
something happened and is never subtracted. Knows nothing of what is timed.
"""

import time
from datetime import UTC, datetime


def monotonic_ns() -> int:
    """Nanoseconds of a clock that never goes back; only differences have a meaning."""
    return time.monotonic_ns()


def utc_timestamp() -> str:
    """The present moment as RFC 3339 with microseconds, such as ``2026-01-31T12:00:00.000000Z``."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

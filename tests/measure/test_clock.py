import re
import time
from datetime import UTC, datetime

from harness.measure.clock import monotonic_ns, utc_timestamp


def test_duration_is_in_nanoseconds_of_a_clock_that_does_not_go_back() -> None:
    outer = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    first, second = monotonic_ns(), monotonic_ns()
    assert outer <= first <= second <= time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def test_timestamp_is_rfc_3339_in_utc_and_now() -> None:
    before = datetime.now(UTC)
    text = utc_timestamp()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)
    assert before <= datetime.fromisoformat(text) <= datetime.now(UTC)


def test_timestamp_is_utc_whatever_the_local_zone(monkeypatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        now = datetime.now(UTC)
        assert abs((datetime.fromisoformat(utc_timestamp()) - now).total_seconds()) < 60
        assert utc_timestamp().endswith("Z")
    finally:
        monkeypatch.undo()
        time.tzset()

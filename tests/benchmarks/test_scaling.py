"""Grown plans are valid and their records pass, so that what is timed is the whole work."""

from typing import Any

import pytest

from benchmarks import context, loading, scaling, starting

SIZE = 40


@pytest.mark.parametrize("step", scaling.STEPS)
def test_each_step_does_its_work(step: str) -> None:
    found = scaling.measure(step, SIZE)
    assert found.keys() == {"seconds", "peak_bytes"}


def test_the_plan_has_grown_by_that_many() -> None:
    plan, manifest = scaling.grown(SIZE)
    small, fewer = scaling.grown(0)
    assert len(plan.materializations) - len(small.materializations) == SIZE
    assert len(manifest) - len(fewer) == SIZE // 2


def test_what_is_wrong_is_found_at_that_size(monkeypatch: pytest.MonkeyPatch) -> None:
    real = scaling.PassingRecord.rows

    def off_by_one(self: Any, name: str, *process: int | None) -> list[dict[str, Any]]:
        rows = real(self, name, *process)
        rows[-1]["requested_bytes"] = 1
        return rows

    monkeypatch.setattr(scaling.PassingRecord, "rows", off_by_one)
    with pytest.raises(RuntimeError, match=r"realization\.materializations"):
        scaling.measure("audit", SIZE)


def test_a_file_beyond_the_readers_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.plan.load.MAX_CONTAINERS", 300)
    assert "too large" in scaling.measure("read", 300)["refused"]


def test_the_exponent_is_the_slope_of_the_logarithms() -> None:
    assert scaling.exponent([10, 100, 1000], [3, 300, 30_000]) == pytest.approx(2)


def test_the_tables_say_what_was_measured_and_what_was_not() -> None:
    rows = {1000: {"seconds": 1.0, "peak_bytes": 1 << 20}, 10: {"refused": "too large"}}
    assert "not measured: too large" in list(scaling.table({"read": rows}))[2]


def test_a_loads_floor_is_both_passes_at_the_hashing_rate() -> None:
    load = {
        "load_s": 4.0,
        "source_bytes": 100,
        "resident_bytes": 140,
        "rss_before_bytes": 1000,
        "rss_peak_bytes": 1160,
    }
    found = loading.figures([load], sha256_bytes_per_sec=120.0)
    assert found == {
        "seconds": 4.0,
        "bytes_per_sec": 25.0,
        "share_of_floor": 0.5,
        "host_bytes_beyond_residents": 20,
    }


def test_a_longer_context_is_predicted_from_its_bytes() -> None:
    found = {
        "prompt": 10,
        "step_s": [1.0, 1.0, 3.0, 5.0, 9.0],
        "kv_bytes_per_position": 30,
        "read_bytes_per_sec": 20.0,
    }
    assert context.rows(found, 2) == [(11, 1.0, 1.0), (13, 4.0, 4.0)]


def test_stages_before_the_first_token_are_listed() -> None:
    found = {"seconds": {"help": [0.3, 0.1]}, "stages": [("fixture: cached", 0.5)]}
    lines = list(starting.table(found))
    assert lines[1].split() == ["help", "0.10", "0.20", "0.2"]
    assert lines[2].split() == ["0.50", "s", "fixture:", "cached"]

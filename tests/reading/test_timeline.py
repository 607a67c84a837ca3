import re

from harness.evidence.listing import ListedRecord
from harness.reading.timeline import timeline_svg


def record(number: int, status: str | None, started_at: str | None) -> ListedRecord:
    return ListedRecord(digest=f"sha256:{number:064x}", status=status, started_at=started_at)


def circles(svg: str) -> list[tuple[float, int, int]]:
    found = re.findall(r'<circle cx="([\d.]+)" cy="(\d+)" r="(\d+)"', svg)
    return [(float(x), int(y), int(r)) for x, y, r in found]


def test_time_goes_across_and_each_status_has_a_line() -> None:
    rows = [
        record(3, "failed", "2026-03-01T00:00:00Z"),
        record(2, "passed", "2026-02-01T00:00:00Z"),
        record(1, "passed", "2026-01-01T00:00:00.5Z"),
        record(4, None, "2026-02-15T12:00:00Z"),
    ]
    svg = timeline_svg(rows, [rows[1].digest])
    drawn = sorted(circles(svg))
    assert [x for x, _, _ in drawn] == sorted({x for x, _, _ in drawn})
    assert drawn[0][1] == drawn[1][1] != drawn[2][1] != drawn[3][1]
    assert [r for _, _, r in drawn] == [4, 6, 4, 4]
    assert "passed: 2" in svg
    assert "failed: 1" in svg
    assert "not audited: 1" in svg
    assert "2026-01-01 00:00" in svg
    assert "2026-03-01 00:00" in svg


def test_one_moment_and_none() -> None:
    assert len(circles(timeline_svg([record(1, "passed", "2026-01-01T00:00:00Z")]))) == 1
    assert timeline_svg([]) == "<p>none</p>"
    assert timeline_svg([record(1, "passed", None)]) == "<p>none</p>"


def test_what_a_record_says_is_never_markup() -> None:
    rows = [
        record(1, "<script>", "2026-01-01T00:00:00Z"),
        record(2, "passed", '<script>"2026'),
        record(3, "passed", "9999-12-31T23:59:59+00:00"),
        record(4, "passed", "0001-01-01T00:00:00"),
    ]
    svg = timeline_svg(rows)
    assert "<script" not in svg
    assert "1 without a readable start" in svg

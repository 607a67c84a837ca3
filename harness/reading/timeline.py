"""Verdicts over time as an SVG picture: time across, one line for each status.

No script, no style from elsewhere; every text is escaped. Knows listed records, no tables.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from harness.evidence.find import NOT_AUDITED, STATUSES
from harness.evidence.listing import ListedRecord
from harness.laboratory.picture import COLORS, shown

_COLORS = {"passed": COLORS[5], "failed": COLORS[1], "disputed": COLORS[4]}
_LABEL_PX = 170
_WIDTH_PX = 560
_LINE_PX = 18
_MARGIN_PX = 8


def timeline_svg(records: Sequence[ListedRecord], chosen: Sequence[str] = ()) -> str:
    """Draw one mark for each record at its start, in the line of its status.

    Args:
        records: What to draw; those without a readable start are counted beneath.
        chosen: Digests of records to be drawn larger.
    """
    placed = [(at, row) for row in records if (at := _started(row)) is not None]
    if not placed:
        return "<p>none</p>"
    first, last = min(at for at, _ in placed), max(at for at, _ in placed)
    parts: list[str] = []
    lines: dict[str, int] = {}
    for status in STATUSES:
        count = sum(_status(row) == status for _, row in placed)
        if count:
            lines[status] = len(lines)
            label = f"{'not audited' if status == NOT_AUDITED else status}: {count}"
            y = _LINE_PX * lines[status] + 13
            parts.append(f'<text x="2" y="{y}" font-size="11">{shown(label)}</text>')
    span = last - first
    for at, row in sorted(placed, key=lambda pair: (pair[1].digest in chosen, pair[0])):
        x = _LABEL_PX + (_WIDTH_PX * (at - first) / span if span > 0 else 0)
        y = _LINE_PX * lines[_status(row)] + 9
        parts.append(_mark(row, x, y, is_large=row.digest in chosen))
    bottom = _LINE_PX * len(lines) + 14
    ends = ((first, _LABEL_PX, "start"), (last, _LABEL_PX + _WIDTH_PX, "end"))
    for at, x, anchor in ends:
        day = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
        parts.append(
            f'<text x="{x}" y="{bottom}" font-size="10" text-anchor="{anchor}">{day}</text>'
        )
    if len(placed) < len(records):
        text = f"{len(records) - len(placed)} without a readable start"
        parts.append(f'<text x="2" y="{bottom}" font-size="10">{shown(text)}</text>')
    size = f"{_LABEL_PX + _WIDTH_PX + 2 * _MARGIN_PX} {bottom + 4}"
    width, height = size.split()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {size}" font-family="monospace">{"".join(parts)}</svg>'
    )


def _mark(row: ListedRecord, x: float, y: int, *, is_large: bool) -> str:
    title = f"{row.digest[7:23]} {_status(row)} {row.started_at}"
    ring = ' stroke="#000"' if is_large else ""
    return (
        f"<g><title>{shown(title)}</title>"
        f'<circle cx="{x:.1f}" cy="{y}" r="{6 if is_large else 4}" '
        f'fill="{_COLORS.get(_status(row), COLORS[2])}"{ring}/></g>'
    )


def _status(row: ListedRecord) -> str:
    return row.status if row.status in STATUSES else NOT_AUDITED


def _started(row: ListedRecord) -> float | None:
    try:
        at = datetime.fromisoformat(row.started_at or "")
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None

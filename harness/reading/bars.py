"""Horizontal bars as an SVG picture: rows downwards, one bar for each series of a row.

No script, no style from elsewhere; every text is escaped. Knows numbers and labels, nothing of
records.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.laboratory.picture import COLORS, shown

MAX_ROWS = 200
"""Rows that are drawn; a line says how many are not."""
_LABEL_PX = 170
_BAR_PX = 260
_TEXT_PX = 150
_HEIGHT_PX = 11
_SERIES_COLORS = (COLORS[3], COLORS[2], COLORS[1], COLORS[4], COLORS[5], COLORS[6])


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a picture."""

    label: str
    values: tuple[int | float | None, ...]
    """By series; ``None`` where nothing was measured."""


def largest(rows: Sequence[Row]) -> float:
    """The largest value of any series; 0 without one."""
    return max((value for row in rows for value in row.values if value is not None), default=0)


def bars_svg(
    rows: Sequence[Row],
    series: Sequence[str],
    *,
    say: Callable[[int | float], str],
    full: float | None = None,
) -> str:
    """Draw rows of bars.

    Args:
        rows: What to draw, from top to bottom.
        series: A name for each value of a row.
        say: A value in words, written beside its bar.
        full: The value whose bar is as long as there is room; by default the largest.
    """
    full = largest(rows) if full is None else full
    parts, top = _legend(series)
    for row in rows[:MAX_ROWS]:
        parts.append(f'<text x="2" y="{top + 10}" font-size="11">{shown(row.label[:28])}</text>')
        for index, value in enumerate(row.values):
            text = "not measured" if value is None else say(value)
            title = f"{row.label}, {series[index]}: {text}"
            width = 0.0 if value is None or full <= 0 else _BAR_PX * min(max(value / full, 0), 1)
            parts.append(_bar(title, text, top, width, _SERIES_COLORS[index % 6]))
            top += _HEIGHT_PX
        top += 4
    if len(rows) > MAX_ROWS:
        text = f"{len(rows) - MAX_ROWS} more rows are not drawn"
        parts.append(f'<text x="2" y="{top + 10}" font-size="11">{shown(text)}</text>')
        top += _HEIGHT_PX + 4
    size = f"{_LABEL_PX + _BAR_PX + _TEXT_PX} {top}"
    width_px, height_px = size.split()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width_px}" '
        f'height="{height_px}" viewBox="0 0 {size}" font-family="monospace">{"".join(parts)}</svg>'
    )


def _legend(series: Sequence[str]) -> tuple[list[str], int]:
    """Names of the series in their colors, and where the rows begin."""
    if len(series) < 2:
        return [], 2
    parts = []
    for index, name in enumerate(series):
        x = 2 + index * 130
        color = _SERIES_COLORS[index % 6]
        parts.append(f'<rect x="{x}" y="3" width="9" height="9" fill="{color}"/>')
        parts.append(f'<text x="{x + 13}" y="12" font-size="11">{shown(name)}</text>')
    return parts, 20


def _bar(title: str, text: str, top: int, width: float, color: str) -> str:
    return (
        f"<g><title>{shown(title)}</title>"
        f'<rect x="{_LABEL_PX}" y="{top}" width="{width:.1f}" height="{_HEIGHT_PX - 1}" '
        f'fill="{color}"/><text x="{_LABEL_PX + width + 4:.1f}" y="{top + 9}" font-size="10">'
        f"{shown(text)}</text></g>"
    )

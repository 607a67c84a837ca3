"""A digest matrix as an SVG picture: boundaries downwards in execution order, trials across.

Runs of boundaries with the same pattern are drawn as one block, so that a matrix of any length
stays a small picture. No script, no style from elsewhere; every text is escaped.
"""

from html import escape
from itertools import groupby

from harness.evidence.redact import escape_terminal
from harness.laboratory.matrix import Matrix

MAX_BLOCKS = 400
"""Blocks that are drawn one by one; what follows is drawn as one that says so."""
MAX_TRIALS = 128
"""Trials that are drawn; a note says how many are not."""
COLORS = ("#c7d3dd", "#d1495b", "#edae49", "#00798c", "#7a5195", "#5f8d4e", "#a0522d", "#444444")
"""By number of the distinct value: the first one seen is pale."""
_LABEL_PX = 330
_CELL_PX = 26
_MIN_BLOCK_PX = 14


def shown(text: str) -> str:
    """Any text, safe within HTML and SVG; control characters are made visible."""
    return escape(escape_terminal(text))


def matrix_svg(matrix: Matrix) -> str:
    """Draw a matrix; each block's title says which boundaries it is."""
    blocks = _blocks(matrix)
    drawn, rest = blocks[:MAX_BLOCKS], blocks[MAX_BLOCKS:]
    parts, top = [], _MIN_BLOCK_PX + 6
    hidden = len(matrix.trials) - MAX_TRIALS
    if hidden > 0:
        parts.append(f'<text x="2" y="12" font-size="9">{hidden} more trials are not drawn</text>')
    for place, trial in enumerate(matrix.trials[:MAX_TRIALS]):
        x = _LABEL_PX + place * _CELL_PX
        text = f"{trial.realization}.{trial.repetition}"
        parts.append(f'<text x="{x + 2}" y="12" font-size="9">{shown(text)}</text>')
    for begin, end in drawn:
        height = _MIN_BLOCK_PX + min(end - begin - 1, 40)
        parts.append(_block(matrix, begin, end, top, height))
        top += height + 1
    if rest:
        text = f"{len(matrix.boundaries) - rest[0][0]} more boundaries are not drawn"
        parts.append(f'<text x="2" y="{top + 11}" font-size="11">{shown(text)}</text>')
        top += _MIN_BLOCK_PX
    width = _LABEL_PX + min(max(1, len(matrix.trials)), MAX_TRIALS) * _CELL_PX
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{top + 4}" '
        f'viewBox="0 0 {width} {top + 4}" font-family="monospace">{"".join(parts)}</svg>'
    )


def _blocks(matrix: Matrix) -> list[tuple[int, int]]:
    """Half-open ranges of boundaries with one pattern, in order."""
    places = range(len(matrix.boundaries))
    blocks = []
    for _, run in groupby(places, key=lambda place: matrix.groups[place]):
        listed = list(run)
        blocks.append((listed[0], listed[-1] + 1))
    return blocks


def _block(matrix: Matrix, begin: int, end: int, top: int, height: int) -> str:
    first, last = matrix.boundaries[begin], matrix.boundaries[end - 1]
    label = first.label if end - begin == 1 else f"{first.label} ... ({end - begin})"
    distinct = matrix.num_distinct(begin)
    title = f"{first.label} to {last.label}: {distinct} distinct"
    weight = ' font-weight="bold"' if distinct > 1 else ""
    cells = "".join(
        _cell(place, group, top, height)
        for place, group in enumerate(matrix.groups[begin][:MAX_TRIALS])
    )
    return (
        f"<g><title>{shown(title)}</title>"
        f'<text x="2" y="{top + 11}" font-size="11"{weight}>{shown(label[:52])}</text>{cells}</g>'
    )


def _cell(place: int, group: int, top: int, height: int) -> str:
    color = COLORS[min(group, len(COLORS) - 1)]
    x = _LABEL_PX + place * _CELL_PX
    return f'<rect x="{x}" y="{top}" width="{_CELL_PX - 1}" height="{height}" fill="{color}"/>'

"""The sections of a page, each a piece of HTML; every text is escaped.

A section that draws takes all records of a page at once, so that equal bars mean equal values.
"""

from collections.abc import Sequence

from harness.errors import EvidenceError
from harness.evidence.listing import DISPUTED, ListedRecord, status_of
from harness.evidence.record import LoadedRecord, LoadedVerdict, Rows
from harness.laboratory.picture import matrix_svg, shown
from harness.laboratory.studied import StudiedCase, step_matrix
from harness.reading.bars import Row, bars_svg, largest
from harness.reading.figures import (
    BYTES_SERIES,
    LEDGER_SERIES,
    decode_times,
    edges,
    histogram,
    ledger_over_lifecycle,
    planned_and_observed,
    step_times,
)
from harness.reading.timeline import timeline_svg

MAX_REALIZATIONS = 6
"""Realizations whose lifecycle is drawn; a line says how many are not."""
_MAX_ROWS = 200
_TIMES = ("process", "phase", "steps", "min ms", "median ms", "p95 ms", "max ms", "sentinels")


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table; without a head the first cell of each line is one."""

    def row(cells: Sequence[str], tags: Sequence[str]) -> str:
        pairs = zip(tags, cells, strict=True)
        return "<tr>" + "".join(f"<{tag}>{shown(cell)}</{tag}>" for tag, cell in pairs) + "</tr>"

    rows = [row(head, ["th"] * len(head))] if head else []
    for line in lines:
        rows.append(row(line, ["td" if head else "th", *["td"] * (len(line) - 1)]))
    return f"<table>{''.join(rows)}</table>"


def folded(title: str, content: str) -> str:
    """Content that a reader opens; needs no script."""
    return f"<details><summary>{shown(title)}</summary>{content}</details>"


def verdict_section(verdicts: Sequence[LoadedVerdict]) -> str:
    """Every verdict, oldest first, with its checks and the differences it found."""
    status = status_of(verdict.predicate.status for verdict in verdicts)
    if status is None:
        return "<p>not audited</p>"
    note = " (its verdicts contradict each other)" if status == DISPUTED else ""
    return f"<p>{_status(status)}{note}</p>" + "".join(_verdict(each) for each in verdicts)


def _verdict(verdict: LoadedVerdict) -> str:
    found = verdict.predicate
    checks = "".join(
        f"<tr><td>{shown(check.id)}</td><td>{_status(check.status)}</td>"
        f"<td>{check.num_differences}</td><td>{shown(check.kind)}</td></tr>"
        for check in found.checks
    )
    rows = verdict.differences()
    lines = [[row["check"], row["path"], row["expected"], row["got"]] for row in rows[:_MAX_ROWS]]
    more = "" if len(rows) <= _MAX_ROWS else f"<p>and {len(rows) - _MAX_ROWS} more</p>"
    head = ("check", "place", "expected", "got")
    listed = folded(f"differences: {len(rows)}", table(head, lines) + more) if lines else ""
    return (
        f"<p>{_status(found.status)} by auditor {shown(found.auditor.version)}, "
        f"verdict {shown(verdict.digest[:23])}</p><table><tr><th>check</th><th>status</th>"
        f"<th>differences</th><th>kind</th></tr>{checks}</table>{listed}"
        f"<p>{len(found.unbound)} fields are bound by no check</p>"
    )


def _status(status: str) -> str:
    kind = status if status in ("passed", "failed") else "other"
    return f'<span class="{kind}">{shown(status)}</span>'


def bytes_section(records: Sequence[LoadedRecord]) -> list[str]:
    """Planned and observed persistent bytes per memory, for each record."""
    drawn = [planned_and_observed(record) for record in records]
    memories = sorted({row.label for rows in drawn for row in rows})
    parts = []
    for rows in drawn:
        pieces = []
        for memory in memories:
            full = max(largest([r for r in every if r.label == memory]) for every in drawn)
            mine = [row for row in rows if row.label == memory]
            pieces.append(bars_svg(mine, BYTES_SERIES, say=say_bytes, full=full))
        parts.append("".join(pieces) or "<p>none</p>")
    return parts


def ledger_section(records: Sequence[LoadedRecord]) -> list[str]:
    """Requested, allocated and resident bytes of each memory at each point, for each record."""
    drawn = []
    for record in records:
        arenas = record.by_realization("arenas")
        drawn.append(
            [
                (number, ledger_over_lifecycle(rows, arenas.get(number, [])))
                for number, rows in record.by_realization("ledger").items()
            ]
        )
    full: dict[str, float] = {}
    for listed in drawn:
        for _, memories in listed[:MAX_REALIZATIONS]:
            for memory, rows in memories.items():
                full[memory] = max(full.get(memory, 0), largest(rows))
    return [
        "".join(_ledger(number, memories, full) for number, memories in listed[:MAX_REALIZATIONS])
        + _left_out(len(listed))
        + _process(record)
        for record, listed in zip(records, drawn, strict=True)
    ]


def _ledger(number: int | None, memories: dict[str, list[Row]], full: dict[str, float]) -> str:
    pieces = [
        f"<h4>{shown(memory)}</h4>"
        + bars_svg(rows, LEDGER_SERIES, say=say_bytes, full=full[memory])
        for memory, rows in memories.items()
    ]
    return f"<h3>Process {number or 0}</h3>{''.join(pieces)}"


def _process(record: LoadedRecord) -> str:
    """The witness's view of the whole process, which owns more than the planned state."""
    lines = [
        [
            str(number or 0),
            row["point"],
            say_bytes(row["vm_rss_bytes"]),
            say_bytes(row["uss_bytes"]),
            say_bytes(row["unplanned_bytes"]),
        ]
        for number, rows in list(record.by_realization("checkpoints").items())[:MAX_REALIZATIONS]
        for row in rows[:_MAX_ROWS]
    ]
    return table(("process", "point", "RSS", "USS", "unplanned"), lines) if lines else ""


def _left_out(count: int) -> str:
    rest = count - MAX_REALIZATIONS
    return f"<p>{rest} more processes are not drawn</p>" if rest > 0 else ""


def times_section(records: Sequence[LoadedRecord]) -> list[str]:
    """Step times of each record: a table, and the distribution of decode steps over equal bins."""
    tables = [record.by_realization("step_times") for record in records]
    groups = [decode_times(each) for each in tables]
    bins = edges(sample for listed in groups for group in listed for sample in group)
    drawn = [histogram(listed[:MAX_REALIZATIONS], bins) for listed in groups]
    full = max((largest(rows) for rows in drawn), default=0)
    return [
        _times(each)
        + bars_svg(rows, _processes(rows), say=lambda count: f"{count} steps", full=full)
        + _left_out(len(each))
        for each, rows in zip(tables, drawn, strict=True)
    ]


def _processes(rows: Sequence[Row]) -> list[str]:
    return [f"process {number}" for number in range(len(rows[0].values) if rows else 0)]


def _times(tables: dict[int | None, Rows]) -> str:
    lines = [
        [
            str(each.realization),
            each.phase,
            str(each.num_steps),
            *(f"{t:.3f}" for t in (each.min_ms, each.median_ms, each.p95_ms, each.max_ms)),
            "-" if each.sentinel_share is None else f"{each.sentinel_share:.1%}",
        ]
        for each in step_times(tables)[:_MAX_ROWS]
    ]
    return table(_TIMES, lines) + "<p>Decode steps by duration:</p>" if lines else "<p>none</p>"


def history_section(records: Sequence[ListedRecord], chosen: Sequence[str]) -> str:
    """Verdicts over time of the records of one experiment."""
    return timeline_svg(records, chosen) if records else "<p>not looked for</p>"


def matrix_section(record: LoadedRecord, cases: Sequence[StudiedCase]) -> str:
    """The digest matrix of the record's own steps, and of each studied case."""
    parts = ["<h3>Steps of this record</h3>", _step_matrix(record)]
    for case in cases:
        parts.append(f"<h3>{shown(case.name or 'study')}</h3><p>study {shown(case.study[:23])}</p>")
        if case.matrix is None:
            parts.append(f"<p>not drawn: {shown(case.problem or 'no matrix')}</p>")
        else:
            parts.append(matrix_svg(case.matrix))
    if not cases:
        parts.append("<p>no localization in this store is about this record</p>")
    return "".join(parts)


def _step_matrix(record: LoadedRecord) -> str:
    try:
        return matrix_svg(step_matrix(record.by_stage("steps")))
    except EvidenceError as error:
        return f"<p>not drawn: {shown(error.problem)}</p>"


def say_bytes(count: int | float) -> str:
    """Bytes in full, and in MiB where there are that many."""
    exact = f"{count:,.0f} B"
    return exact if abs(count) < 1 << 20 else f"{exact} ({count / (1 << 20):,.1f} MiB)"

"""One record, or two side by side, as one self-contained HTML page.

No script and no network; everything that came from a file is escaped. The page repeats what the
store says and judges nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from harness.evidence.diff import RecordComparison, RecordDifference, compare_records
from harness.evidence.listing import ListedRecord
from harness.evidence.record import LoadedRecord, LoadedVerdict, verdicts_of
from harness.laboratory.picture import shown
from harness.laboratory.studied import StudiedCase, studied_cases
from harness.reading.sections import (
    bytes_section,
    folded,
    history_section,
    ledger_section,
    matrix_section,
    table,
    times_section,
    verdict_section,
)

_STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:110em}h2{border-bottom:1px solid #bbb}"
    "table{border-collapse:collapse;font-size:90%;margin:.6em 0}"
    "td,th{border:1px solid #bbb;padding:.2em .5em;text-align:left;overflow-wrap:anywhere}"
    "td:first-child,th:first-child{overflow-wrap:break-word;max-width:28em}"
    "svg{max-width:100%;height:auto;margin:.4em 0}"
    ".columns{display:grid;grid-auto-flow:column;grid-auto-columns:minmax(0,1fr);gap:2em}"
    ".passed{color:#2c6e2c}.failed{color:#b3202c;font-weight:bold}"
    "@media(max-width:70em){.columns{display:block}}"
)
_MAX_DIFFERENCES = 200


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One record with all that its page says of it."""

    record: LoadedRecord
    verdicts: Sequence[LoadedVerdict]
    studies: Sequence[StudiedCase]
    history: Sequence[ListedRecord] = ()
    """Records of the same experiment in its store."""


def gather(record: LoadedRecord, history: Sequence[ListedRecord] = ()) -> Shown:
    """Read what belongs to a record from its store.

    Args:
        record: The record.
        history: Records of the same experiment, to be shown over time.

    Raises:
        EvidenceError: When a verdict of the store is damaged, since it could be about this record.
    """
    return Shown(
        record=record,
        verdicts=verdicts_of(record.store, record.digest),
        studies=studied_cases(record.store, record.digest),
        history=history,
    )


def page(records: Sequence[Shown]) -> str:
    """The page of one record, or of several side by side; the first two are compared.

    Raises:
        EvidenceError: When a table is damaged.
    """
    title = "Evidence of " + " and ".join(each.record.predicate.experiment for each in records)
    loaded = [each.record for each in records]
    parts = [
        _columns("Record", [_identity(each) for each in loaded]),
        _columns("Verdicts", [verdict_section(each.verdicts) for each in records]),
        _columns(
            "Verdicts over time",
            [history_section(each.history, [one.digest for one in loaded]) for each in records],
        ),
        _columns("Bytes, planned and observed", bytes_section(loaded)),
        _columns("Memory over the lifecycle", ledger_section(loaded)),
        _columns("Step times", times_section(loaded)),
        _columns(
            "Digest matrices", [matrix_section(each.record, each.studies) for each in records]
        ),
    ]
    if len(loaded) > 1:
        parts.insert(2, _differences(compare_records(loaded[0], loaded[1])))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{shown(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{shown(title)}</h1><p>What the store says; "
        "<code>harness evidence verify</code> judges it again. A passing record is not an "
        f"acceptance.</p>{''.join(parts)}</body></html>\n"
    )


def _columns(title: str, contents: Sequence[str]) -> str:
    columns = "".join(f"<div>{content}</div>" for content in contents)
    return f'<section><h2>{shown(title)}</h2><div class="columns">{columns}</div></section>'


def _identity(record: LoadedRecord) -> str:
    found = record.predicate
    source, model, key = found.source, found.plan.model, found.applicability_key
    changed = " with uncommitted changes" if source.dirty else ""
    lines = [
        ("record", record.digest),
        ("experiment", found.experiment),
        ("plan", found.plan.digest),
        ("model", f"{model.repository} at {model.revision}"),
        ("time", f"{found.started_at} to {found.ended_at}"),
        ("source", f"{source.git_commit or 'unknown commit'}{changed}"),
        ("result digest", found.result_digest or "none"),
    ]
    if key is not None:
        lines += [(name.replace("_", " "), str(value)) for name, value in asdict(key).items()]
    lines += [(f"claim {each.name}", f"{each.label}: {each.detail}") for each in found.claims]
    return table((), lines)


def _differences(comparison: RecordComparison) -> str:
    """What the two records differ in; telemetry differs always and is only counted."""
    agree = "results agree" if comparison.results_agree else "results do not agree"
    if not comparison.comparable:
        agree = "digests of numbers were not compared: other conditions"
    return (
        f"<section><h2>Differences</h2><p>{shown(agree)}; "
        f"{len(comparison.telemetry)} differences of telemetry</p>"
        f"{_listed('identity', comparison.identity)}{_listed('results', comparison.results)}"
        "</section>"
    )


def _listed(name: str, rows: Sequence[RecordDifference]) -> str:
    if not rows:
        return ""
    lines = [(row.path, row.left, row.right) for row in rows[:_MAX_DIFFERENCES]]
    rest = len(rows) - len(lines)
    more = f"<p>and {rest} more</p>" if rest else ""
    listed = table(("place", "left", "right"), lines)
    return folded(f"{name}: {len(rows)}", listed + more)

"""Verdicts and reports as lines of text for a person; everything from a file is escaped.

Knows how to say what was found, not how it was found.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TextIO

from harness.evidence.log.state import LogState
from harness.evidence.redact import escape_terminal
from harness.reconcile.published import PublishedReport
from harness.reconcile.verdict import FAILED, PASSED, Difference, Verdict
from harness.reconcile.verify import VerifyReport

_STYLES = {PASSED: "green", FAILED: "bold red"}
_UNSURE = "yellow"
_CODES = {"green": "32", "bold red": "1;31", "yellow": "33", "dim": "2"}
"""Of ANSI terminals, for each style."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line, already safe to print, and the style a terminal may give it."""

    text: str
    style: str = ""


def plain(lines: Iterable[Line]) -> str:
    """The lines as plain text, with a newline at the end of each."""
    return "".join(f"{line.text}\n" for line in lines)


def print_lines(lines: Iterable[Line], stream: TextIO) -> None:
    """Print lines; colors appear on a terminal only, and not where a person wants none."""
    has_colors = (
        stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    )
    for line in lines:
        code = _CODES.get(line.style) if has_colors else None
        stream.write(f"{line.text}\n" if code is None else f"\x1b[{code}m{line.text}\x1b[0m\n")


def verdict_lines(verdict: Verdict, *, title: str = "record") -> Iterator[Line]:
    """A verdict: its status, each check, and every difference, sorted."""
    yield _status(title, verdict.status)
    width = max((len(check.id) for check in verdict.checks), default=0)
    for check in verdict.checks:
        note = "" if check.num_differences == 0 else f"  {check.num_differences} differences"
        kind = "" if check.kind == "acceptance" else f"  ({check.kind})"
        text = _safe(f"  {check.id:<{width}}  {check.status}{note}{kind}")
        yield Line(text=text, style=_STYLES.get(check.status, _UNSURE))
    yield from _differences(verdict.differences)
    if verdict.result_digest is not None:
        yield Line(text=f"result digest {verdict.result_digest}")
    yield Line(text=f"{len(verdict.unbound)} fields are bound by no check")


def _differences(differences: Iterable[Difference]) -> Iterator[Line]:
    for difference in differences:
        style = _STYLES.get(difference.status, _UNSURE)
        yield Line(text=_safe(f"  {difference.check}: {difference.path}"), style=style)
        yield Line(text=_safe(f"      expected {difference.expected}"))
        yield Line(text=_safe(f"      got      {difference.got}"))


def published_lines(report: PublishedReport) -> Iterator[Line]:
    """A published pair: status, every difference, and what nothing binds."""
    yield _status("published pair", report.status)
    for difference in report.differences:
        yield Line(text=_safe(f"  {difference.path}"), style=_STYLES[FAILED])
        yield Line(text=_safe(f"      expected {difference.expected}"))
        yield Line(text=_safe(f"      got      {difference.got}"))
    yield Line(text=f"{len(report.unbound)} values are bound by nothing in the pair:")
    for entry in report.unbound:
        bound = f", {entry.bound}" if entry.bound else ""
        yield Line(text=_safe(f"  {entry.path} ({entry.reason}{bound})"), style="dim")


def verify_lines(report: VerifyReport) -> Iterator[Line]:
    """A store: every integrity problem, and every record with what changed."""
    for problem in report.problems:
        yield Line(text=_safe(f"{problem}"), style=_STYLES[FAILED])
    for entry in report.records:
        name = f"{entry.record.removeprefix('sha256:')[:16]} {entry.experiment or ''}".rstrip()
        if entry.problem is not None:
            yield Line(text=_safe(f"{name}: cannot be audited"), style=_UNSURE)
            for part in entry.problem.splitlines():
                yield Line(text=_safe(f"    {part}"))
            continue
        stored = entry.stored_status or "never judged"
        text = f"{name}: {entry.status} ({entry.num_differences} differences), stored: {stored}"
        yield Line(text=_safe(text), style=_STYLES.get(entry.status or "", _UNSURE))
        for change in entry.changes:
            yield Line(text=_safe(f"    changed: {change}"), style=_STYLES[FAILED])
    yield Line(text=_log_text(report.log))
    if report.num_keys is None:
        yield Line(text="signatures: not checked against keys; name them with --keys")
    else:
        text = "signatures: every record must carry one by an allowed key"
        yield Line(text=f"{text} (keys: {report.num_keys})")
    yield Line(
        text=f"{len(report.problems)} integrity problems, {len(report.records)} records, "
        f"{sum(bool(entry.changes) for entry in report.records)} changed verdicts"
    )


def _log_text(log: LogState | None) -> str:
    if log is None:
        return "no log: nothing here would show that a record was removed"
    if log.digest is None:
        return "log: cannot be read"
    return f"log: leaves {log.num_leaves}, shards {log.num_shards}, checkpoint {log.digest}"


def _status(title: str, status: str) -> Line:
    return Line(text=_safe(f"{title}: {status}"), style=_STYLES.get(status, _UNSURE))


def _safe(text: str) -> str:
    return escape_terminal(text)

import io

import pytest
from synthetic_record import MANIFEST, Layout, make_plan, make_record, make_tables

from harness.reconcile.audit import audit
from harness.reconcile.compare import Mismatch, Unbound
from harness.reconcile.published import PublishedReport
from harness.reconcile.report import Line, plain, print_lines, published_lines, verdict_lines

HOSTILE = "evil\x1b[31m[bold]\u202e"
ESCAPED = "evil\\x1b[31m[bold]\\u202e"


def failing_text() -> str:
    rows = make_tables()
    rows["executions", 1][0]["status"] = HOSTILE
    rows["executions", 0][0]["status"] = "NOT_ACTIVATED"
    plan = make_plan()
    verdict = audit(plan, MANIFEST, make_record(plan, rows), layout=Layout())  # type: ignore[arg-type]
    return plain(verdict_lines(verdict, title="record abc"))


def test_a_verdict_lists_every_check_and_every_difference_in_order() -> None:
    lines = failing_text().splitlines()
    assert lines[0] == "record abc: failed"
    assert "  realization.executions        failed  2 differences" in lines
    assert "  step.times                    passed  (telemetry)" in lines
    paths = [line for line in lines if line.startswith("  realization.executions: ")]
    assert paths == [
        "  realization.executions: tables/executions/r0[id=exec.model].status",
        "  realization.executions: tables/executions/r1[id=exec.model].status",
    ]
    where = lines.index(paths[0])
    assert lines[where + 1 : where + 3] == [
        '      expected "ACTIVE"',
        '      got      "NOT_ACTIVATED"',
    ]


def test_text_from_files_is_escaped() -> None:
    text = failing_text()
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_markup_of_a_file_is_printed_as_it_stands() -> None:
    report = PublishedReport(
        status="failed",
        differences=(Mismatch(path="$.status", expected="PASS", got=HOSTILE),),
        unbound=(Unbound(path="$.x", reason="telemetry", bound="not falling"),),
    )
    stream = io.StringIO()
    print_lines(published_lines(report), stream)
    assert stream.getvalue() == plain(published_lines(report))
    assert f"      got      {ESCAPED}\n" in stream.getvalue()
    assert "  $.x (telemetry, not falling)\n" in stream.getvalue()


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True


def test_colors_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [Line(text="bad", style="bold red"), Line(text="as it is")]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_lines(lines, shown := Terminal())
    assert shown.getvalue() == "\x1b[1;31mbad\x1b[0m\nas it is\n"
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            print_lines(lines, shown := Terminal())
            assert shown.getvalue() == plain(lines)

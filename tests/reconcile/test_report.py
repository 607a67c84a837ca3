import io

from rich.console import Console
from synthetic_record import MANIFEST, Layout, make_plan, make_record, make_tables

from harness.reconcile.audit import audit
from harness.reconcile.compare import Mismatch, Unbound
from harness.reconcile.published import PublishedReport
from harness.reconcile.report import plain, print_lines, published_lines, verdict_lines

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
    print_lines(published_lines(report), Console(file=stream, width=40))
    assert stream.getvalue() == plain(published_lines(report))
    assert f"      got      {ESCAPED}\n" in stream.getvalue()
    assert "  $.x (telemetry, not falling)\n" in stream.getvalue()

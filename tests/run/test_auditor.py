import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "reconcile"))
from synthetic_record import Layout, make_plan, make_tables, write_record

from harness.errors import EvidenceError
from harness.evidence.record import load_verdict
from harness.plan.format import plan_file_bytes
from harness.run import auditor

PLAN = make_plan()


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "plan.json").write_bytes(plan_file_bytes(PLAN.document))
    return ["--plan", str(tmp_path / "plan.json"), "--store", str(tmp_path / "store")]


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> tuple[int, str]:
    def layout_for(family: str) -> Any:
        return Layout()

    monkeypatch.setattr(auditor, "layout_for", layout_for)
    monkeypatch.setattr(sys, "argv", ["auditor", *arguments])
    code = auditor.main()
    return code, capsys.readouterr().out


@pytest.mark.parametrize(("num_nan", "code"), [(0, 0), (1, 1)])
def test_it_keeps_the_verdict_and_answers_in_one_line(
    num_nan: int,
    code: int,
    tmp_path: Path,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = make_tables()
    rows["steps", 0][0]["num_nan"] = num_nan
    record = write_record(tmp_path / "store", PLAN, rows)
    arguments += ["--json", "--record", record.digest]
    got, out = run(monkeypatch, capsys, arguments)
    assert got == code
    (line,) = out.splitlines()
    answer = json.loads(line)
    kept = load_verdict(answer["verdict_digest"], record.store)
    assert kept.predicate.status == answer["status"] == ("passed", "failed")[code]
    assert answer["num_differences"] == len(kept.differences())


def test_a_record_of_another_store_is_refused(
    tmp_path: Path,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = write_record(tmp_path / "other", PLAN, make_tables())
    path = record.store.path("records", record.digest)
    with pytest.raises(EvidenceError, match="another store"):
        run(monkeypatch, capsys, [*arguments, "--record", str(path)])
    assert record.store.digests("verdicts") == []


def test_the_child_loads_no_torch_and_says_what_is_wrong_in_one_message(
    tmp_path: Path, arguments: list[str]
) -> None:
    program = (
        "import sys, harness.run.auditor as auditor\n"
        "assert 'torch' not in sys.modules\n"
        "auditor.run_child(auditor.main)\n"
    )
    record = write_record(tmp_path / "store", PLAN, make_tables())
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, "--record", record.digest],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("unknown model family")
    assert "Traceback" not in done.stderr

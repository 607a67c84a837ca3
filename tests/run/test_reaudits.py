"""A second process audits what this one would, and its end is told and never lost."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.adapters.families import layout_for
from harness.errors import ExitCode
from harness.evidence.record import verdicts_by_record
from harness.evidence.store import Store
from harness.reconcile.reaudit import Reaudit, reaudit
from harness.reconcile.verify import VerifyReport, verify
from harness.run.reaudits import Reauditor, is_worth_it


@pytest.fixture
def store(repo_root: Path) -> Path:
    return repo_root / "evidence"


@pytest.fixture
def reauditor(store: Path) -> Iterator[Reauditor]:
    with Reauditor(store) as process:
        yield process


def newest(store: Path) -> dict[str, str]:
    return {record: lines[-1].digest for record, lines in verdicts_by_record(Store(store)).items()}


def verified(store: Path, reauditor: Reauditor, asked: list[str], *, kill_at: int) -> VerifyReport:
    def elsewhere(record: str, verdict: str | None) -> Reaudit:
        asked.append(record)
        if len(asked) == kill_at:
            os.kill(reauditor.process_id, signal.SIGKILL)
        return Reaudit.of_message(reauditor.ask(record, verdict))

    return verify(store, None, layout_for=layout_for, elsewhere=elsewhere)


def test_it_finds_what_an_audit_here_finds(store: Path, reauditor: Reauditor) -> None:
    record, verdict = min(newest(store).items())
    here = reaudit(Store(store), record, verdict, layout_for=layout_for)
    unjudged = reaudit(Store(store), record, None, layout_for=layout_for)
    assert here.status == "passed"
    assert Reaudit.of_message(reauditor.ask(record, verdict)) == here
    assert Reaudit.of_message(reauditor.ask(record, None)) == unjudged
    assert unjudged.stored_verdict is None


def test_a_record_that_is_not_there_is_told_and_not_the_end(
    store: Path, reauditor: Reauditor
) -> None:
    answer = Reaudit.of_message(reauditor.ask("sha256:" + "0" * 64, None))
    assert answer.problem is not None
    assert answer.exit_code == ExitCode.INVALID_INPUT
    assert reauditor.ask(min(newest(store)), None)["status"] == "passed"


def test_every_field_survives_the_way(store: Path) -> None:
    entry = Reaudit(
        record="sha256:1",
        experiment="x",
        status="failed",
        stored_verdict="sha256:2",
        stored_status="passed",
        changes=("one", "two"),
        num_differences=3,
        problem="y",
        problem_code=ExitCode.NOT_EVALUABLE,
    )
    for each in (entry, replace(entry, changes=(), problem=None, problem_code=None, status=None)):
        assert Reaudit.of_message(each.message()) == each


def test_one_that_is_killed_is_told_and_the_others_are_audited(
    store: Path, reauditor: Reauditor
) -> None:
    asked: list[str] = []
    report = verified(store, reauditor, asked, kill_at=1)
    assert report.exit_code == ExitCode.NOT_EVALUABLE
    assert [entry.record for entry in report.records] == Store(store).digests("records")
    (lost,) = (entry for entry in report.records if entry.status is None)
    assert [lost.record] == asked
    assert "SIGKILL" in (lost.problem or "")
    assert {entry.status for entry in report.records if entry is not lost} == {"passed"}


def test_a_verdict_that_is_not_there_is_a_problem_of_its_record(store: Path) -> None:
    record = min(newest(store))
    with Reauditor(store) as reauditor:
        answer = reauditor.ask(record, "sha256:" + "0" * 64)
    assert answer["problem_code"] == ExitCode.INVALID_INPUT
    assert "no such" in answer["problem"]


def test_an_error_of_its_program_stays_one_here(store: Path) -> None:
    with Reauditor(store) as reauditor:
        with pytest.raises(RuntimeError, match="exit code 70"):
            reauditor.ask(5, None)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="exit code 70"):
            reauditor.ask(min(newest(store)), None)


@pytest.mark.parametrize("num_records", [0, 1, 2, 3])
def test_two_records_and_two_cores_are_worth_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_records: int
) -> None:
    assert not is_worth_it(tmp_path)
    (tmp_path / "records").mkdir()
    for number in range(num_records):
        (tmp_path / "records" / f"{number}.json").touch()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert is_worth_it(tmp_path) == (num_records >= 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert not is_worth_it(tmp_path)

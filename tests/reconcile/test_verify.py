from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_record import Layout, make_plan, make_tables, write_record

from harness.errors import ContradictionError, EvidenceError, ExitCode, InvalidInputError
from harness.evidence.record import LoadedRecord, verdicts_of
from harness.reconcile.judge import judge, store_verdict
from harness.reconcile.report import plain, verify_lines
from harness.reconcile.verdict import Verdict
from harness.reconcile.verify import VerifyReport, uphold, verify

PLAN = make_plan()


def layout_for(family: str) -> Any:
    return Layout()


def verified(root: Path) -> VerifyReport:
    return verify(root, None, layout_for=layout_for)


@pytest.fixture
def record(tmp_path: Path) -> LoadedRecord:
    return write_record(tmp_path, PLAN, make_tables())


def keep(record: LoadedRecord, **changes: Any) -> Verdict:
    verdict = replace(judge(PLAN, record, layout_for=layout_for), **changes)
    store_verdict(PLAN, record, verdict)
    return verdict


def test_a_sound_store_with_an_unchanged_verdict_passes(record: LoadedRecord) -> None:
    keep(record)
    report = verified(record.store.root)
    assert report.problems == ()
    (entry,) = report.records
    assert (entry.status, entry.stored_status, entry.changes) == ("passed", "passed", ())
    assert report.exit_code == ExitCode.PASSED


def test_a_verdict_that_changed_is_reported_and_not_rewritten(record: LoadedRecord) -> None:
    verdict = judge(PLAN, record, layout_for=layout_for)
    failed = tuple(
        replace(check, status="failed", num_differences=1) if check.id == "steps.repeat" else check
        for check in verdict.checks
    )
    keep(record, status="failed", checks=failed)
    before = record.store.digests("verdicts")
    report = verified(record.store.root)
    assert report.exit_code == ExitCode.FAILED
    assert report.records[0].changes == (
        "status: failed then, passed now",
        "steps.repeat: failed (acceptance) then, passed (acceptance) now",
    )
    assert record.store.digests("verdicts") == before
    assert "changed: status: failed then, passed now" in plain(verify_lines(report))


@pytest.mark.parametrize(
    "changes", [{"result_digest": "sha256:" + "0" * 64}, {"result_digest": None}]
)
def test_another_result_digest_is_a_change(record: LoadedRecord, changes: dict[str, Any]) -> None:
    keep(record, **changes)
    (entry,) = verified(record.store.root).records
    assert len(entry.changes) == 1
    assert entry.changes[0].startswith("result digest: ")


def test_equal_statuses_with_other_differences_are_a_change(tmp_path: Path) -> None:
    rows = make_tables()
    rows["steps", 1][0]["num_nan"] = 1
    record = write_record(tmp_path, PLAN, rows)
    verdict = judge(PLAN, record, layout_for=layout_for)
    moved = replace(verdict.differences[0], path="tables/steps/r0")
    keep(record, differences=(moved,))
    (entry,) = verified(tmp_path).records
    assert entry.changes == ("differences: 1 gone, 2 new",)


def test_a_failure_that_fails_again_is_sound_evidence(tmp_path: Path) -> None:
    rows = make_tables()
    rows["steps", 1][0]["num_nan"] = 1
    record = write_record(tmp_path, PLAN, rows)
    assert verified(tmp_path).exit_code == ExitCode.FAILED
    keep(record)
    report = verified(tmp_path)
    assert (report.records[0].status, report.exit_code) == ("failed", ExitCode.PASSED)


def test_a_record_that_was_never_judged_counts_by_its_audit(record: LoadedRecord) -> None:
    report = verified(record.store.root)
    assert (report.records[0].stored_status, report.exit_code) == (None, ExitCode.PASSED)
    assert "never judged" in plain(verify_lines(report))


def test_damage_fails_and_the_record_is_judged_anew(record: LoadedRecord) -> None:
    keep(record)
    table = record.table("steps", 0)
    assert table is not None
    path = record.store.path("tables", table.digest)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    report = verified(record.store.root)
    assert report.exit_code == ExitCode.FAILED
    assert [problem.kind for problem in report.problems] == ["modified"]
    assert report.records[0].status == "failed"
    assert report.records[0].changes != ()


def test_a_record_without_its_plan_cannot_be_audited(record: LoadedRecord) -> None:
    record.store.path("plans", PLAN.file_digest).unlink()
    report = verified(record.store.root)
    (entry,) = report.records
    assert entry.status is None
    assert entry.problem is not None
    assert report.exit_code == ExitCode.FAILED
    assert "cannot be audited" in plain(verify_lines(report))


def test_an_unknown_family_is_the_records_problem_and_not_a_crash(record: LoadedRecord) -> None:
    def unknown(family: str) -> Any:
        raise InvalidInputError("unknown model family", got=repr(family))

    report = verify(record.store.root, None, layout_for=unknown)
    assert report.problems == ()
    assert report.records[0].exit_code == ExitCode.INVALID_INPUT
    assert report.exit_code == ExitCode.INVALID_INPUT


def test_every_record_is_judged(tmp_path: Path) -> None:
    write_record(tmp_path, PLAN, make_tables())
    rows = make_tables()
    rows["steps", 1][0]["num_nan"] = 1
    write_record(tmp_path, PLAN, rows)
    report = verified(tmp_path)
    assert sorted(str(entry.status) for entry in report.records) == ["failed", "passed"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no evidence store"):
        verified(tmp_path / "nothing")


def upheld(record: LoadedRecord) -> None:
    uphold(record, verdicts_of(record.store, record.digest), layout_for=layout_for)


def test_a_record_is_upheld_when_every_verdict_says_what_today_says(record: LoadedRecord) -> None:
    with pytest.raises(ContradictionError, match="never audited"):
        upheld(record)
    keep(record)
    upheld(record)
    keep(record, status="failed")
    with pytest.raises(ContradictionError, match="contradicts") as caught:
        upheld(record)
    assert caught.value.exit_code == ExitCode.FAILED
    assert caught.value.expected == "passed"
    assert str(caught.value.got).startswith("failed (sha256:")
    assert ";" not in str(caught.value.got)


def test_a_failure_that_fails_again_is_upheld(tmp_path: Path) -> None:
    rows = make_tables()
    rows["steps", 1][0]["num_nan"] = 1
    record = write_record(tmp_path, PLAN, rows)
    checks = judge(PLAN, record, layout_for=layout_for).checks
    passed = tuple(replace(check, status="passed", num_differences=0) for check in checks)
    keep(record, status="passed", checks=passed)
    with pytest.raises(ContradictionError):
        upheld(record)
    for digest in record.store.digests("verdicts"):
        record.store.path("verdicts", digest).unlink()
    keep(record)
    upheld(record)

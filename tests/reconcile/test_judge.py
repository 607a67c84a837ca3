"""Auditing files: the verdict in the store, the command, and what is in memory while it runs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from synthetic_record import (
    MANIFEST,
    Layout,
    Tables,
    make_plan,
    make_tables,
    write_record,
)

from harness.errors import InvalidInputError
from harness.evidence.record import LoadedRecord, load_verdict
from harness.evidence.store import Store
from harness.evidence.verify import verify_store
from harness.plan.format import plan_file_bytes
from harness.plan.load import load_plan
from harness.plan.manifest import manifest_bytes
from harness.reconcile.__main__ import main
from harness.reconcile.judge import answer, judge, read_published_result, store_verdict

# A family that is nobody's: its audit needs no layout only where the state is not pooled.
PLAN = make_plan(pools=False)


def layout_for(family: str) -> Any:
    assert family == "none"
    return Layout(pools=False)


@pytest.fixture
def record(tmp_path: Path) -> LoadedRecord:
    return write_record(tmp_path / "store", PLAN, make_tables(pools=False))


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_bytes(plan_file_bytes(PLAN.document))
    return path


def failing_tables() -> Tables:
    rows = make_tables(pools=False)
    rows["steps", 1][0]["num_nan"] = 1
    rows["steps", 0][0]["num_nan"] = 1
    return rows


def test_a_record_on_disk_is_judged_like_one_in_memory(record: LoadedRecord) -> None:
    verdict = judge(PLAN, record, layout_for=layout_for)
    assert (verdict.status, verdict.differences) == ("passed", ())
    assert judge(PLAN, record) == verdict


def test_the_verdict_is_kept_with_every_difference(tmp_path: Path) -> None:
    record = write_record(tmp_path, PLAN, failing_tables())
    verdict = judge(PLAN, record, layout_for=layout_for)
    digest = store_verdict(PLAN, record, verdict)
    kept = load_verdict(digest, record.store)
    assert kept.predicate.status == "failed"
    assert kept.predicate.record_digest == record.digest
    assert kept.predicate.plan_digest == PLAN.plan.digest
    assert kept.predicate.checks == verdict.checks
    assert kept.predicate.unbound == verdict.unbound
    assert [(row["check"], row["path"]) for row in kept.differences()] == [
        ("numbers.finite", "tables/steps/r0[repetition=0,phase=prefill,step=0].num_nan"),
        ("numbers.finite", "tables/steps/r1[repetition=0,phase=prefill,step=0].num_nan"),
    ]
    assert verify_store(tmp_path) == []
    # An equal audit is the same file.
    assert store_verdict(PLAN, record, judge(PLAN, record, layout_for=layout_for)) == digest
    assert answer(PLAN, record, verdict, digest)["verdict_digest"] == digest


def test_a_damaged_table_is_found_in_the_file(record: LoadedRecord) -> None:
    table = record.table("states", 1)
    assert table is not None
    path = record.store.path("tables", table.digest)
    path.write_bytes(path.read_bytes()[:-1])
    # Both realizations have equal states, so they share the file.
    found = {d.path for d in judge(PLAN, record).differences if d.check == "integrity.tables"}
    assert found == {"tables/states/r0", "tables/states/r1"}


def test_the_manifest_beside_the_plan_serves_when_the_store_has_none(
    record: LoadedRecord, plan_file: Path
) -> None:
    assert PLAN.plan.checkpoint is not None
    stored = record.store.path("manifests", PLAN.plan.checkpoint.manifest.digest)
    stored.unlink()
    assert judge(load_plan(plan_file), record).status == "failed"
    folder = plan_file.parent / "manifests"
    folder.mkdir()
    (folder / stored.name).write_bytes(manifest_bytes(MANIFEST))
    assert judge(load_plan(plan_file), record).status == "passed"


@pytest.mark.parametrize(("rows", "code"), [(make_tables(pools=False), 0), (failing_tables(), 1)])
def test_the_command_answers_in_one_line_and_by_exit_code(
    rows: Tables,
    code: int,
    tmp_path: Path,
    plan_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = write_record(tmp_path / "store", PLAN, rows)
    path = record.store.path("records", record.digest)
    arguments = ["--plan", str(plan_file), "--record", str(path), "--json", "--store-verdict"]
    assert main(arguments) == code
    line = json.loads(capsys.readouterr().out)
    assert line["status"] == ("passed", "failed")[code]
    assert line["record_digest"] == record.digest
    assert load_verdict(line["verdict_digest"], record.store).predicate.status == line["status"]


def test_the_command_takes_a_digest_and_a_store_and_writes_nothing_unasked(
    record: LoadedRecord, plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--plan", str(plan_file), "--store", str(record.store.root)]
    assert main([*arguments, "--record", record.digest[:20]]) == 0
    assert "record: passed" in capsys.readouterr().out
    assert record.store.digests("verdicts") == []
    assert main([*arguments, "--record", "ffff"]) == 2
    assert "no such evidence" in capsys.readouterr().err


def test_a_record_without_manifest_digests_exits_3(tmp_path: Path) -> None:
    from dataclasses import replace

    open_ended = tuple(replace(e, sha256=None, digest_source="none") for e in MANIFEST)
    plan = make_plan(manifest=open_ended, pools=False)
    record = write_record(tmp_path / "store", plan, make_tables(pools=False), manifest=open_ended)
    path = tmp_path / "plan.json"
    path.write_bytes(plan_file_bytes(plan.document))
    arguments = ["--plan", str(path), "--store", str(record.store.root), "--record"]
    assert main([*arguments, record.digest]) == 3


def test_the_command_judges_a_published_pair(
    shared_r1: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import gzip

    plan = tmp_path / "plan.json"
    plan.write_bytes(gzip.decompress((shared_r1 / "frozen-plan.json.gz").read_bytes()))
    result = shared_r1 / "result.json"
    assert main(["--plan", str(plan), "--record", str(result)]) == 0
    assert "published pair: passed" in capsys.readouterr().out
    changed = tmp_path / "result.json"
    changed.write_bytes(
        result.read_bytes().replace(b'"lifecycle_state": "live"', b'"lifecycle_state": "gone"', 1)
    )
    assert main(["--plan", str(plan), "--record", str(changed), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [d["path"] for d in report["differences"]] == [
        "$.observed.materializations[1].lifecycle_state"
    ]


def test_a_file_that_is_no_published_result_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[]")
    assert read_published_result(path) is None
    path.write_text("{")
    with pytest.raises(InvalidInputError):
        read_published_result(path)


PROGRAM = """
import sys
from harness.reconcile.__main__ import main
import harness.reconcile.verify
code = main(sys.argv[1:])
heavy = {"torch", "triton", "transformers", "hydra", "kernels"} & sys.modules.keys()
print(sorted(heavy))
sys.exit(code)
"""


def test_an_audit_loads_no_torch(record: LoadedRecord, plan_file: Path) -> None:
    arguments = ["--plan", str(plan_file), "--store", str(record.store.root)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments, "--record", record.digest, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert json.loads(done.stdout.splitlines()[0])["status"] == "passed"


def test_stores_are_left_without_verdicts_when_the_audit_cannot_start(
    record: LoadedRecord, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    store = str(record.store.root)
    assert main(["--plan", str(broken), "--store", store, "--record", record.digest]) == 2
    assert Store(record.store.root).digests("verdicts") == []

import doctest
import shutil
from pathlib import Path

import pytest

import harness.api
from harness.api import EvidenceStore, open_store
from harness.errors import EvidenceError

STEP_COLUMNS = ["realization", "repetition", "phase", "step"]


@pytest.fixture
def evidence(repo_root: Path, tmp_path: Path) -> EvidenceStore:
    """A copy of the golden evidence: one record of two realizations and a failed verdict."""
    golden = repo_root / "tests" / "golden" / "1" / "evidence"
    return open_store(shutil.copytree(golden, tmp_path / "evidence"))


def test_records_are_one_row_each(evidence: EvidenceStore) -> None:
    (row,) = evidence.records().to_dict("records")
    assert row["experiment"] == "tiny"
    assert row["status"] == "failed"
    assert row["digest"].startswith("sha256:")
    assert row["problem"] is None


def test_a_frame_holds_every_realization(evidence: EvidenceStore) -> None:
    record = evidence.load(evidence.records()["digest"][0])
    steps = record.frame("steps")
    assert list(steps.columns[:4]) == STEP_COLUMNS
    assert list(steps["realization"]) == [0, 0, 0, 1, 1, 1]
    assert list(steps["token"]) == [40, 41, 42, 40, 41, 42]
    trials = record.frame("trials")
    assert list(trials["realization"]) == [0]
    assert list(trials.columns).count("realization") == 1
    assert record.frame("arenas").empty
    assert "point" in record.frame("arenas").columns
    with pytest.raises(EvidenceError, match="unknown table"):
        record.frame("surprise")


def test_bytes_and_verdicts(evidence: EvidenceStore) -> None:
    record = evidence.load(evidence.records()["digest"][0][7:15])
    assert record.planned_and_observed().to_dict("records") == [
        {"memory_resource_id": "node0.ram", "planned_bytes": 64, "observed_bytes": 64}
    ]
    (verdict,) = record.verdicts().to_dict("records")
    assert (verdict["status"], verdict["num_failed"]) == ("failed", 1)
    assert verdict["unbound"] == ["trials.duration_ns"]
    assert record.predicate.experiment == "tiny"


def test_what_is_damaged_is_not_shown(evidence: EvidenceStore) -> None:
    record = evidence.load(evidence.records()["digest"][0])
    for path in (evidence.store.root / "tables").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(EvidenceError, match="was changed"):
        record.frame("steps")


def test_empty_and_missing_stores(tmp_path: Path) -> None:
    assert list(open_store(tmp_path).records().columns)[:2] == ["digest", "experiment"]
    with pytest.raises(EvidenceError, match="no evidence store"):
        open_store(tmp_path / "nothing")


def test_the_documented_examples_hold(
    evidence: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(evidence.store.root.parent)
    results = doctest.testmod(harness.api)
    assert results.attempted >= 6
    assert results.failed == 0

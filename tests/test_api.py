import doctest
import shutil
from pathlib import Path

import pytest

import harness.api
from harness.api import FRAMES, EvidenceStore, Record, compare, open_store
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


def test_frames_have_their_declared_columns_and_types(repo_root: Path) -> None:
    store = open_store(repo_root / "evidence")
    record, other = (store.load(digest) for digest in store.records()["digest"][:2])
    made = {
        "history": store.history(),
        "ledger": record.ledger(),
        "step_times": record.step_times(),
        "differences": compare(record, other),
    }
    assert made.keys() == FRAMES.keys()
    for name, frame in made.items():
        assert {column: str(kind) for column, kind in frame.dtypes.items()} == FRAMES[name]
        assert not frame.empty, name


def test_frames_of_an_empty_store_and_of_a_small_record_are_typed_too(
    evidence: EvidenceStore, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    record = evidence.load(evidence.records()["digest"][0])
    empty = (open_store(tmp_path / "empty").history(), record.ledger(), compare(record, record))
    for name, frame in zip(("history", "ledger", "differences"), empty, strict=True):
        assert frame.empty
        assert {column: str(kind) for column, kind in frame.dtypes.items()} == FRAMES[name]


def test_the_ledger_is_that_of_the_tables(repo_root: Path) -> None:
    store = open_store(repo_root / "evidence")
    record = store.load(store.records()["digest"][0])
    frame = record.ledger()
    assert len(frame) == len(record.frame("ledger"))
    assert sorted(frame["point"].unique()) == sorted(record.frame("ledger")["point"].unique())
    # A memory in which the witness saw arenas has a number at each of its points.
    arenas = record.frame("arenas")
    seen = frame[frame["memory_resource_id"].isin(arenas["memory_resource_id"])]
    assert not seen.empty
    assert seen["resident_bytes"].notna().all()
    assert seen["resident_bytes"].sum() == arenas["resident_bytes"].sum()


def test_a_memory_that_the_witness_never_saw_has_no_resident_bytes(
    repo_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(repo_root / "evidence")
    record = store.load(store.records()["digest"][0])
    tables = {name: record.frame(name) for name in ("ledger", "arenas")}
    arenas = tables["arenas"]
    unseen, seen = sorted(arenas["memory_resource_id"].unique())[:2]
    tables["arenas"] = arenas[arenas["memory_resource_id"] == seen]
    monkeypatch.setattr(Record, "frame", lambda self, name: tables[name])
    ledger = record.ledger().set_index("memory_resource_id")["resident_bytes"]
    assert ledger[unseen].isna().all()
    assert ledger[seen].notna().all()


def test_history_goes_forward_and_can_be_of_one_experiment(repo_root: Path) -> None:
    store = open_store(repo_root / "evidence")
    every = store.history()
    assert every["started_at"].is_monotonic_increasing
    assert set(every["record"]) == set(store.records()["digest"])
    name = every["experiment"][0]
    assert set(store.history(name)["experiment"]) == {name}
    assert store.history("nothing").empty


def test_step_digests_number_what_differs(repo_root: Path) -> None:
    store = open_store(repo_root / "evidence")
    record = store.load(store.records()["digest"][0])
    frame = record.step_digests()
    assert (frame == 0).all().all()
    num_trials = len(record.frame("steps").groupby(["realization", "repetition"]))
    assert frame.shape[1] == num_trials
    assert record.digest_matrices() == {}


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

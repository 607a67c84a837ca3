import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness.errors import NotEvaluableError
from harness.evidence.listing import list_records
from harness.evidence.record import load_record
from harness.evidence.store import Store
from harness.evidence.verify import verify_store


def run_script(name: str, *arguments: object, repo_root: Path) -> str:
    script = Path(__file__).with_name(name)
    completed = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(repo_root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: what is visible is tested here, not the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


def check_final_files(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file() and not path.name.endswith(".tmp"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name.split(".")[0], path


def test_a_write_killed_at_any_step_shows_the_whole_file_or_none(
    fast_folder: Path, repo_root: Path, sample: ModuleType
) -> None:
    output = run_script("killed_writer.py", fast_folder, "manifest", repo_root=repo_root)
    num_killed = int(output)
    assert num_killed >= 12
    outcomes = set()
    for number in range(1, num_killed + 1):
        store = Store(fast_folder / str(number))
        store.root.mkdir(exist_ok=True)
        check_final_files(store.root)
        kinds = {problem.kind for problem in verify_store(store.root)}
        outcomes.add((len(store.digests("manifests")), "leftover" in kinds))
        store.put_manifest(sample.MANIFEST)
        assert len(store.digests("manifests")) == 1
    # Nothing yet; a temporary file alone; beside the final name; the final name alone.
    assert outcomes == {(0, False), (0, True), (1, True), (1, False)}


@pytest.mark.slow
def test_a_run_killed_at_any_step_shows_a_whole_record_or_none(
    fast_folder: Path, repo_root: Path, sample: ModuleType
) -> None:
    num_killed = int(run_script("killed_writer.py", fast_folder, "record", repo_root=repo_root))
    assert num_killed > 80
    (record,) = Store(fast_folder / str(num_killed + 1)).digests("records")
    num_visible_records = 0
    for number in range(1, num_killed + 1):
        store = Store(fast_folder / str(number))
        store.root.mkdir(exist_ok=True)
        check_final_files(store.root)
        kinds = {problem.kind for problem in verify_store(store.root)}
        assert kinds <= {"leftover", "extra"}, (number, kinds)
        for listed in list_records(store):
            num_visible_records += 1
            loaded = load_record(listed.digest, store)
            assert loaded.by_realization("steps") == {0: sample.step_rows(), 1: sample.step_rows()}
            assert loaded.plan_bytes() == sample.PLAN_BYTES
        # The same run again completes what was begun.
        again = sample.put_record(store)
        sample.put_verdict(store, again)
        assert again == record
        assert {problem.kind for problem in verify_store(store.root)} <= {"leftover"}
    assert num_visible_records > 5


def test_fifty_simultaneous_writers_lose_and_mix_nothing(
    fast_folder: Path, repo_root: Path, sample: ModuleType
) -> None:
    output = run_script("many_writers.py", fast_folder, 50, repo_root=repo_root)
    written = dict(line.split() for line in output.splitlines())
    store = Store(fast_folder)
    assert sorted(written.values()) == store.digests("records")
    assert len(written) == 50
    for number, digest in written.items():
        record = load_record(digest, store)
        assert record.predicate.experiment == f"job-{number}"
        assert record.rows("steps", 1) == sample.step_rows(f" of {number}")
    assert verify_store(fast_folder) == []


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_a_failing_write_is_one_clear_error_and_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store.put_manifest(b"before\n")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(NotEvaluableError, match="No space left"):
        store.put_manifest(b"lost\n")
    monkeypatch.undo()
    names = os.listdir(store.root / "manifests")
    assert names == [hashlib.sha256(b"before\n").hexdigest() + ".jsonl"]

"""Writers that are killed, and many at once."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from harness.evidence.listing import list_records
from harness.evidence.log.shard import read_log
from harness.evidence.record import load_record
from harness.evidence.store import Store
from harness.evidence.verify import verify_store

Helper = Callable[[str], ModuleType]
Script = Callable[..., str]


def check_final_files(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file() and not path.name.endswith(".tmp") and path.parent.name != "log":
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name.split(".")[0], path


def test_a_write_killed_at_any_step_shows_the_whole_file_or_none(
    fast_folder: Path, run_script: Script, sample: ModuleType
) -> None:
    num_killed = int(run_script("killed_writer.py", fast_folder / "k", "manifest"))
    assert num_killed >= 6
    outcomes = set()
    for how in ("kill", "kill_middle", "kill_after"):
        if how != "kill":
            run_script("killed_writer.py", fast_folder / how, "manifest", how)
        for number in range(1, num_killed + 1):
            store = Store(fast_folder / ("k" if how == "kill" else how) / str(number) / "store")
            check_final_files(store.root)
            kinds = {problem.kind for problem in verify_store(store.root)}
            outcomes.add((len(store.digests("manifests")), "leftover" in kinds))
            store.put_manifest(sample.MANIFEST)
            assert len(store.digests("manifests")) == 1
    # Nothing yet; a temporary file alone; beside the final name; the final name alone.
    assert outcomes == {(0, False), (0, True), (1, True), (1, False)}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("sign", "kill_middle"),
        pytest.param("logged", "kill_after", marks=pytest.mark.slow),
        *(
            pytest.param(name, "kill_middle", marks=pytest.mark.slow)
            for name in ("promote", "merge", "update")
        ),
    ],
)
def test_an_operation_killed_at_any_step_is_completed_by_the_next(
    fast_folder: Path, run_script: Script, helper: Helper, name: str, how: str
) -> None:
    operations = helper("fault_operations")
    folder = fast_folder / "killed"
    num_killed = int(run_script("killed_writer.py", folder, name, how))
    assert num_killed > 4
    before = operations.contents(folder / "base" / "store")
    seen = set()
    for number in range(1, num_killed + 1):
        work = folder / str(number)
        check_final_files(work / "store") if name != "sign" else None
        seen |= operations.check(work / "store", before)
        operations.check_again(name, work, before, left={"leftover"})
    assert "leftover" in seen or name == "update"
    assert "unlogged" in seen


@pytest.mark.slow
def test_a_run_killed_at_any_step_shows_a_whole_record_or_none(
    fast_folder: Path, run_script: Script, sample: ModuleType
) -> None:
    folder = fast_folder / "killed"
    num_killed = int(run_script("killed_writer.py", folder, "record"))
    assert num_killed > 40
    num_visible_records = 0
    for number in range(1, num_killed + 1):
        store = Store(folder / str(number) / "store")
        for listed in list_records(store):
            if listed.experiment == "after":
                num_visible_records += 1
                loaded = load_record(listed.digest, store)
                rows = sample.step_rows("after")
                assert loaded.by_realization("steps") == {0: rows, 1: rows}
                assert loaded.plan_bytes() == sample.PLAN_BYTES
    assert num_visible_records > 3


@pytest.mark.parametrize(
    ("count", "logged"),
    [(25, False), pytest.param(100, True, marks=pytest.mark.slow)],
)
def test_simultaneous_writers_lose_and_mix_nothing(
    fast_folder: Path, run_script: Script, sample: ModuleType, count: int, logged: bool
) -> None:
    store = Store(fast_folder)
    if logged:
        store.start_log()
    output = run_script("many_writers.py", fast_folder, count)
    written = dict(line.split() for line in output.splitlines())
    assert sorted(written.values()) == store.digests("records")
    assert len(written) == count
    for number, digest in written.items():
        record = load_record(digest, store)
        assert record.predicate.experiment == f"job-{number}"
        assert record.rows("steps", 1) == sample.step_rows(f" of {number}")
    assert verify_store(fast_folder) == []
    shards = list(read_log(fast_folder))
    assert len(shards) == (count if logged else 0)
    for shard in shards:
        named = [leaf.digest for leaf in shard.leaves() if leaf and "records/" in leaf.name]
        assert len(named) == 1

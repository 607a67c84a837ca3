import shutil
from pathlib import Path
from types import ModuleType

import pytest

from harness.errors import EvidenceError
from harness.evidence.log.check import check_against
from harness.evidence.log.checkpoint import make_checkpoint
from harness.evidence.log.shard import has_log, read_log
from harness.evidence.merge import merge
from harness.evidence.store import Store
from harness.evidence.verify import verify_store


def contents(store: Store) -> dict[str, bytes]:
    return {
        path.relative_to(store.root).as_posix(): path.read_bytes()
        for path in store.root.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def branches(store: Store, tmp_path: Path, sample: ModuleType) -> tuple[Store, Store]:
    """Two copies of one store, each with one record more."""
    store.start_log()
    sample.put_verdict(store, sample.put_record(store))
    shutil.copytree(store.root, tmp_path / "other")
    other = Store(tmp_path / "other")
    sample.put_record(store, salt="ours", experiment="ours")
    sample.put_verdict(other, sample.put_record(other, salt="theirs", experiment="theirs"))
    return store, other


def test_the_merged_store_is_the_union_of_files_and_shards(branches: tuple[Store, Store]) -> None:
    ours, theirs = branches
    before, others = contents(ours), contents(theirs)
    checkpoints = [make_checkpoint(each.root) for each in branches]
    done = merge(theirs, ours)
    # The shared shard grew here and not there, so ours stays.
    assert contents(ours) == others | before
    new = others.keys() - before.keys()
    assert done.files == tuple(sorted(name for name in new if "log/" not in name))
    assert [f"log/{shard}.jsonl" for shard in done.shards] == [n for n in new if "log/" in n]
    assert verify_store(ours.root) == []
    for checkpoint in checkpoints:
        assert check_against(ours.root, checkpoint) == []
    again = merge(theirs, ours)
    assert (again.files, again.shards) == ((), ())
    assert contents(ours) == others | before
    # And the other way round, to the same store.
    merge(ours, theirs)
    assert contents(theirs) == contents(ours)


def test_a_shard_that_grew_there_grows_here(branches: tuple[Store, Store], tmp_path: Path) -> None:
    ours, theirs = branches
    shards = {shard.id: shard for shard in read_log(ours.root)}
    (shared,) = [shard.id for shard in read_log(theirs.root) if shard.id in shards]
    merge(ours, theirs)
    (grown,) = [shard for shard in read_log(theirs.root) if shard.id == shared]
    assert grown.lines == shards[shared].lines


def test_a_torn_line_is_replaced_by_the_whole_one(branches: tuple[Store, Store]) -> None:
    ours, theirs = branches
    shards = {shard.id: shard for shard in read_log(ours.root)}
    (shared,) = [shard for shard in read_log(theirs.root) if shard.id in shards]
    with shared.path.open("ab") as file:
        file.write(shards[shared.id].lines[len(shared.lines)][:30])
    merge(ours, theirs)
    assert verify_store(theirs.root) == []


def test_shards_of_one_id_with_different_leaves_are_refused_before_anything_is_written(
    branches: tuple[Store, Store],
) -> None:
    ours, theirs = branches
    before = contents(ours)
    ids = {shard.id for shard in read_log(ours.root)}
    (shared,) = [shard for shard in read_log(theirs.root) if shard.id in ids]
    lines = [*shared.lines[1:], shared.lines[0]]
    shared.path.write_bytes(b"".join(line + b"\n" for line in lines))
    assert verify_store(theirs.root) == []
    with pytest.raises(EvidenceError, match="different leaves") as caught:
        merge(theirs, ours)
    assert caught.value.got == shared.id
    assert contents(ours) == before


def test_a_damaged_store_is_not_merged(branches: tuple[Store, Store]) -> None:
    ours, theirs = branches
    before = contents(ours)
    path = theirs.path("records", theirs.digests("records")[0])
    path.unlink()
    with pytest.raises(EvidenceError, match=path.name):
        merge(theirs, ours)
    assert contents(ours) == before


def test_a_store_without_a_log_is_logged_where_there_is_one(
    store: Store, tmp_path: Path, sample: ModuleType
) -> None:
    sample.put_verdict(store, sample.put_record(store))
    plain, logged = Store(tmp_path / "plain"), Store(tmp_path / "logged")
    merge(store, plain)
    assert not has_log(plain.root)
    assert contents(plain) == contents(store)
    logged.start_log()
    done = merge(store, logged)
    assert set(done.files) == contents(store).keys()
    assert verify_store(logged.root) == []
    (shard,) = read_log(logged.root)
    assert len(shard.lines) == len(done.files)


def test_what_nobody_names_is_not_copied(store: Store, tmp_path: Path, sample: ModuleType) -> None:
    sample.put_record(store)
    orphan = sample.put_rows(store, "steps", sample.step_rows("orphan"))
    target = Store(tmp_path / "target")
    merge(store, target)
    assert not target.has("tables", orphan.digest)
    assert verify_store(target.root) == []

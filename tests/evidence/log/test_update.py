from pathlib import Path
from types import ModuleType

import pytest

from harness.errors import EvidenceError
from harness.evidence.log.check import check_against
from harness.evidence.log.checkpoint import make_checkpoint
from harness.evidence.log.shard import has_log, read_log
from harness.evidence.log.update import update_log
from harness.evidence.store import Store
from harness.evidence.verify import verify_store


def names(store: Store) -> list[str]:
    """Every file of a store but those of its log, sorted."""
    files = [path for path in store.root.rglob("*") if path.is_file() and path.parent.name != "log"]
    return sorted(path.relative_to(store.root).as_posix() for path in files)


def test_a_store_gets_its_first_shard(store: Store, sample: ModuleType) -> None:
    sample.put_verdict(store, sample.put_record(store))
    assert not has_log(store.root)
    done = update_log(store)
    assert list(done.appended) == names(store)
    (shard,) = read_log(store.root)
    assert [leaf.name for leaf in shard.leaves() if leaf] == names(store)
    assert verify_store(store.root) == []
    again = update_log(store)
    assert (again.appended, again.mended) == ((), ())
    assert list(read_log(store.root)) == [shard]


def test_what_an_interrupted_writer_left_out_is_appended(logged: Store, sample: ModuleType) -> None:
    checkpoint = make_checkpoint(logged.root)
    aside = logged.root.parent / "aside"
    (logged.root / "log").rename(aside)
    record = sample.put_record(logged, salt="e", experiment="e")
    aside.rename(logged.root / "log")
    first = next(iter(read_log(logged.root)))
    with first.path.open("ab") as file:
        file.write(b'{"digest":"sha256:00')
    done = update_log(Store(logged.root))
    assert done.mended == (first.id,)
    assert f"records/{record[7:]}.json" in done.appended
    assert verify_store(logged.root) == []
    assert check_against(logged.root, checkpoint) == []
    assert first.path.read_bytes() == b"".join(line + b"\n" for line in first.lines)


def test_a_damaged_store_is_refused_and_gets_no_log(store: Store, sample: ModuleType) -> None:
    sample.put_record(store)
    paths = sorted((store.root / "tables").iterdir())[:2]
    paths[0].write_bytes(b"damaged")
    paths[1].unlink()
    with pytest.raises(EvidenceError, match="the store is damaged") as caught:
        update_log(store)
    for path in paths:
        assert path.name in str(caught.value)
    assert not has_log(store.root)


def test_a_removed_record_is_not_forgotten_by_an_update(logged: Store) -> None:
    path = logged.path("records", logged.digests("records")[0])
    path.unlink()
    with pytest.raises(EvidenceError, match=path.name):
        update_log(logged)


def test_what_no_statement_names_is_not_logged(store: Store, sample: ModuleType) -> None:
    sample.put_record(store)
    orphan = sample.put_rows(store, "steps", sample.step_rows("orphan"))
    leftover = store.root / "tables" / f".{'0' * 64}.parquet.4194305.0a0b0c0d.tmp"
    leftover.write_bytes(b"half")
    done = update_log(store)
    assert f"tables/{orphan.digest[7:]}.parquet" not in done.appended
    assert {problem.kind for problem in verify_store(store.root)} == {"extra", "leftover"}


def test_there_must_be_a_store(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no evidence store"):
        update_log(Store(tmp_path / "nothing"))

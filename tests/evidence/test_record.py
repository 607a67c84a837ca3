import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from harness.errors import EvidenceError
from harness.evidence.record import RememberingRecord, load_record, load_verdict, verdicts_of
from harness.evidence.store import Store


def test_rows_by_table_and_realization(store: Store, sample: ModuleType) -> None:
    record = load_record(sample.put_record(store), store)
    assert record.realizations == (0, 1)
    assert record.rows("trials") == sample.trial_rows()
    assert record.rows("step_times", 1) == sample.time_rows(101)
    assert record.by_realization("step_times") == {
        0: sample.time_rows(100),
        1: sample.time_rows(101),
    }
    assert list(record.by_realization("trials")) == [None]
    assert record.by_realization("arenas") == {}
    for name, realization in (("arenas", None), ("steps", None), ("steps", 2), ("trials", 0)):
        assert record.table(name, realization) is None
        with pytest.raises(EvidenceError, match="no such table"):
            record.rows(name, realization)
    table = record.table("steps", 0)
    assert table is not None
    frame = pd.read_parquet(store.path("tables", table.digest))
    assert frame.to_dict("records") == record.rows("steps", 0)


def test_a_remembering_record_reads_equal_tables_once(
    store: Store, sample: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = load_record(sample.put_record(store), store)
    first = record.table("steps", 0)
    assert first is not None
    tables = [each for each in record.predicate.tables if each.name != "steps"]
    tables += [replace(first, realization=index) for index in (0, 1)]
    tables += [replace(first, realization=2, num_rows=first.num_rows + 1)]
    predicate = replace(record.predicate, tables=tuple(tables))
    remembering = RememberingRecord(**vars(record) | {"predicate": predicate})
    reads: list[str] = []
    read = Store.read
    monkeypatch.setattr(Store, "read", lambda *args: reads.append(args[2]) or read(*args))
    for index in (0, 1):
        assert remembering.rows("steps", index) == record.rows("steps", 0)
    assert reads == [first.digest] * 3
    with pytest.raises(EvidenceError, match="another length"):
        remembering.rows("steps", 2)
    with pytest.raises(EvidenceError, match="no such table"):
        remembering.rows("steps", 3)


def test_plan_and_manifest_are_the_stored_bytes(store: Store, sample: ModuleType) -> None:
    record = load_record(sample.put_record(store), store)
    assert record.plan_bytes() == sample.PLAN_BYTES
    assert record.manifest_bytes() == sample.MANIFEST


def test_a_record_without_a_manifest(store: Store, sample: ModuleType) -> None:
    record = load_record(sample.put_record(store, manifest_digest=None), store)
    assert record.manifest_bytes() is None


def test_a_record_is_found_by_path_digest_and_prefix(
    store: Store, sample: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = sample.put_record(store)
    path = store.path("records", digest)
    monkeypatch.chdir(path.parent)
    for reference in (path, str(path), path.name, Path(path.name)):
        record = load_record(reference)
        assert (record.digest, record.store.root) == (digest, store.root)
    for reference in (digest, digest.removeprefix("sha256:")[:10]):
        assert load_record(reference, store).digest == digest
    with pytest.raises(EvidenceError, match="needs a store"):
        load_record(digest)


@pytest.mark.parametrize("name", ["copy.json", "records/x.json", "../records", "missing/"])
def test_a_path_that_is_no_record_of_a_store_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(EvidenceError, match="not one of the records"):
        load_record(tmp_path / name)


def test_a_link_to_a_record_is_refused(store: Store, sample: ModuleType, tmp_path: Path) -> None:
    path = store.path("records", sample.put_record(store))
    (tmp_path / "records").mkdir()
    link = tmp_path / "records" / path.name
    link.symlink_to(path)
    with pytest.raises(EvidenceError, match="symbolic link"):
        load_record(link)


def test_verdicts_of_a_record_come_oldest_first(store: Store, sample: ModuleType) -> None:
    record, other = sample.put_record(store), sample.put_record(store, salt="other")
    sample.put_verdict(store, other)
    first = sample.put_verdict(store, record)
    second = sample.put_verdict(store, record, failed=True)
    for age, digest in enumerate((second, first)):
        os.utime(store.path("verdicts", digest), ns=(age, age))
    verdicts = verdicts_of(store, record)
    assert [verdict.digest for verdict in verdicts] == [second, first]
    assert [len(verdict.differences()) for verdict in verdicts] == [1, 0]
    assert load_verdict(first[7:20], store).predicate.status == "passed"
    # A newer auditor decides before the time of the file.
    auditor = sample.AuditorIdentity(version="0.10.0", package_digest=None)
    newest = sample.put_verdict(store, record, auditor=auditor)
    os.utime(store.path("verdicts", newest), ns=(0, 0))
    assert verdicts_of(store, record)[-1].digest == newest

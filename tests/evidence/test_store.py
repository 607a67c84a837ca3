import hashlib
import os
from pathlib import Path
from types import ModuleType

import pytest

from harness.errors import EvidenceError, InvalidInputError
from harness.evidence import store as store_module
from harness.evidence.store import Store
from harness.evidence.tables import WrittenTable, encode


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_files_are_named_by_the_hash_of_their_bytes(store: Store, sample: ModuleType) -> None:
    record = sample.put_record(store)
    verdict = sample.put_verdict(store, record)
    files = [path for path in store.root.rglob("*") if path.is_file()]
    assert len(files) == 9
    for path in files:
        assert sha(path.read_bytes()) == path.name.split(".")[0]
    assert store.digests("records") == [record]
    assert store.digests("verdicts") == [verdict]
    assert store.path("records", record).is_file()


def test_putting_the_same_bytes_again_changes_nothing(store: Store) -> None:
    first = store.put_plan(b"plan")
    status = store.path("plans", first).stat()
    assert store.put_plan(b"plan") == first
    again = store.path("plans", first).stat()
    assert (again.st_ino, again.st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    assert os.listdir(store.root / "plans") == [f"{sha(b'plan')}.json"]


def test_a_table_can_be_put_as_a_file(store: Store, tmp_path: Path, sample: ModuleType) -> None:
    data, num_rows = encode("steps", sample.step_rows())
    path = tmp_path / "steps.parquet"
    path.write_bytes(data)
    assert store.put_table(path) == store.put_table(data) == f"sha256:{sha(data)}"
    table = WrittenTable(
        name="steps",
        realization=0,
        digest=f"sha256:{sha(data)}",
        num_rows=num_rows,
        size_bytes=len(data),
    )
    assert store.read_table_rows(table) == sample.step_rows()


@pytest.mark.parametrize("change", [{"num_rows": 2}, {"size_bytes": 1}, {"name": "states"}])
def test_what_a_statement_says_of_a_table_must_hold(
    store: Store, sample: ModuleType, change: dict[str, object]
) -> None:
    table = sample.put_rows(store, "steps", sample.step_rows())
    with pytest.raises(EvidenceError):
        store.read_table_rows(WrittenTable(**{**vars(table), **change}))


def test_a_table_given_through_a_link_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(EvidenceError, match="symbolic link"):
        store.put_table(tmp_path / "link")


def test_a_changed_file_is_refused_with_both_digests(store: Store) -> None:
    digest = store.put_plan(b"plan")
    store.path("plans", digest).write_bytes(b"plam")
    with pytest.raises(EvidenceError) as caught:
        store.read("plans", digest)
    assert caught.value.expected == digest
    assert caught.value.got == f"sha256:{sha(b'plam')}"


@pytest.mark.parametrize("what", ["symlink", "folder", "pipe", "missing"])
def test_what_is_not_a_regular_file_is_refused(store: Store, tmp_path: Path, what: str) -> None:
    digest = store.put_plan(b"plan")
    path = store.path("plans", digest)
    path.unlink()
    if what == "symlink":
        (tmp_path / "elsewhere").write_bytes(b"plan")
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    assert not store.has("plans", digest)
    assert store.digests("plans") == []
    with pytest.raises(EvidenceError):
        store.read("plans", digest)
    if what != "missing":
        with pytest.raises(EvidenceError, match="something else"):
            store.put_plan(b"plan")


def test_other_bytes_under_a_name_are_never_overwritten(store: Store) -> None:
    path = store.path("plans", store.put_plan(b"plan"))
    for other in (b"plam", b"another length"):
        path.write_bytes(other)
        with pytest.raises(EvidenceError, match="something else"):
            store.put_plan(b"plan")
        assert path.read_bytes() == other
        assert os.listdir(path.parent) == [path.name]


def test_a_store_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(EvidenceError, match="not a folder of a store"):
            Store(root).put_plan(b"plan")
        with pytest.raises(EvidenceError, match="not a folder of a store"):
            Store(root).digests("studies")


def test_a_linked_folder_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (store.root / "plans").symlink_to(tmp_path / "other")
    with pytest.raises(EvidenceError, match="not a folder of a store"):
        store.put_plan(b"plan")
    with pytest.raises(EvidenceError, match="not a folder of a store"):
        store.digests("plans")
    assert list((tmp_path / "other").iterdir()) == []
    digest = "sha256:" + sha(b"plan")
    (tmp_path / "other" / f"{sha(b'plan')}.json").write_bytes(b"plan")
    with pytest.raises(EvidenceError, match="not a folder of a store"):
        store.read("plans", digest)


def test_a_file_longer_than_its_kind_allows_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = store.put_manifest(b"x" * 100)
    monkeypatch.setattr(store_module, "MAX_FILE_BYTES", {"manifests": 99})
    with pytest.raises(EvidenceError, match="too long"):
        store.read("manifests", digest)
    with pytest.raises(EvidenceError, match="too long"):
        store.put_manifest(b"y" * 100)


def test_a_statement_is_stored_only_after_what_it_names(
    store: Store, sample: ModuleType, tmp_path: Path
) -> None:
    record = sample.put_record(store)
    statement = store.read_record(record)
    verdict = store.read_verdict(sample.put_verdict(store, record))
    empty = Store(tmp_path / "empty")
    for put, document in ((empty.put_record, statement), (empty.put_verdict, verdict)):
        with pytest.raises(EvidenceError, match="only name what the store holds"):
            put(document)
    table = statement["predicate"]["tables"][0]
    path = store.path("tables", table["digest"])
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(EvidenceError, match="only name what the store holds"):
        store.put_record(statement)


def test_a_verdict_among_the_records_is_refused(store: Store, sample: ModuleType) -> None:
    verdict = sample.put_verdict(store, sample.put_record(store))
    data = store.path("verdicts", verdict).read_bytes()
    store.path("records", verdict).write_bytes(data)
    with pytest.raises(EvidenceError, match="another kind"):
        store.read_record(verdict)


def test_references_resolve_by_unambiguous_prefix(store: Store) -> None:
    digest = store.put_plan(b"plan")
    bare = sha(b"plan")
    for reference in (digest, bare, bare[:12], bare[:4], bare[:12].upper()):
        assert store.resolve(reference, "plans") == digest
    # Two names that share their first four digits, made by hand.
    for last in ("0", "1"):
        (store.root / "plans" / ("abcd" + last * 60 + ".json")).write_bytes(b"")
    with pytest.raises(EvidenceError, match="ambiguous"):
        store.resolve("abcd", "plans")
    assert store.resolve("abcd0", "plans") == "sha256:abcd" + "0" * 60
    with pytest.raises(EvidenceError, match="no such evidence"):
        store.resolve("abcd2", "plans")


@pytest.mark.parametrize(
    "reference", ["", "abc", "../../etc", "abcd\n", "sha256:", "g" * 8, "*" * 4]
)
def test_malformed_references_are_refused(store: Store, reference: str) -> None:
    with pytest.raises(EvidenceError, match="not a reference"):
        store.resolve(reference)


@pytest.mark.parametrize("digest", ["sha256:../../x", "a" * 64, "sha256:" + "a" * 64 + "\n"])
def test_a_path_is_made_only_from_a_whole_digest(store: Store, digest: str) -> None:
    with pytest.raises(InvalidInputError):
        store.read("plans", digest)


def test_readers_ignore_temporary_and_foreign_files(store: Store) -> None:
    digest = store.put_plan(b"plan")
    folder = store.root / "plans"
    hexes = sha(b"other")
    for name in (f".{hexes}.json.123.0a0b0c0d.tmp", f"{hexes}.jsonl", f"{hexes.upper()}.json", "x"):
        (folder / name).write_bytes(b"other")
    assert store.digests("plans") == [digest]

"""Remote stores that lie: nothing of them enters a store here, and the lie is named."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.canonical import canonical_bytes, sha256_digest
from harness.errors import EvidenceError
from harness.evidence.remote.check import check_remote
from harness.evidence.remote.folder import FolderRemote
from harness.evidence.remote.pull import pull_all, pull_record
from harness.evidence.remote.push import push_all
from harness.evidence.store import Store
from harness.evidence.verify import verify_store

Lie = Callable[[Path, str], str]


def table_of(root: Path, record: str) -> Path:
    """A table that only this record names."""
    store = Store(root)
    (other,) = set(store.digests("records")) - {record}
    named = [
        {t["digest"] for t in store.read_record(d)["predicate"]["tables"]} for d in (record, other)
    ]
    return store.path("tables", min(named[0] - named[1]))


def changed(root: Path, record: str) -> str:
    path = table_of(root, record)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    return path.name


def cut_off(root: Path, record: str) -> str:
    path = table_of(root, record)
    path.write_bytes(path.read_bytes()[:-1])
    return path.name


def grown(root: Path, record: str) -> str:
    path = table_of(root, record)
    with path.open("ab") as file:
        file.truncate(1 << 40)
    return path.name


def gone(root: Path, record: str) -> str:
    path = table_of(root, record)
    path.unlink()
    return path.name


def linked(root: Path, record: str) -> str:
    path = table_of(root, record)
    path.unlink()
    path.symlink_to("/dev/zero")
    return path.name


def a_pipe(root: Path, record: str) -> str:
    path = table_of(root, record)
    path.unlink()
    os.mkfifo(path)
    return path.name


def other_statement(root: Path, record: str) -> str:
    path = Store(root).path("records", record)
    path.write_bytes(path.read_bytes().replace(b'"one"', b'"uno"').replace(b'"two"', b'"duo"'))
    return path.name


@pytest.mark.parametrize(
    "lie",
    [changed, cut_off, grown, gone, linked, a_pipe, other_statement],
    ids=lambda f: f.__name__,
)
def test_what_is_damaged_is_refused_and_named_and_the_rest_arrives(
    lie: Lie, filled: Store, folder: FolderRemote, tmp_path: Path
) -> None:
    push_all(filled, folder)
    record, sound = filled.digests("records")
    name = lie(folder.root, record)
    back = Store(tmp_path / "back")
    done = pull_all(folder, back)
    assert any(name in text for text in done.refused)
    with pytest.raises(EvidenceError, match=name):
        done.require_whole(folder.url)
    assert back.digests("records") == [sound]
    # The shard names what did not come, and so did not come either; nothing harmful is here.
    assert {each.kind for each in verify_store(back.root)} <= {"extra", "unlogged"}
    assert name in "".join(map(str, check_remote(folder).problems))
    with pytest.raises(EvidenceError, match=name):
        pull_record(record, folder, Store(tmp_path / "one")).require_whole(folder.url)
    assert Store(tmp_path / "one").digests("records") == []


def test_a_statement_that_is_not_canonical_is_refused_under_its_own_digest(
    filled: Store, folder: FolderRemote, tmp_path: Path
) -> None:
    push_all(filled, folder)
    path = folder.root / "records" / f"{filled.digests('records')[0][7:]}.json"
    data = path.read_bytes().replace(b'":', b'": ', 1)
    path.with_name(f"{sha256_digest(data)[7:]}.json").write_bytes(data)
    back = Store(tmp_path / "back")
    (refused,) = pull_all(folder, back).refused
    assert sha256_digest(data)[7:] in refused
    assert back.digests("records") == filled.digests("records")
    assert any("invalid" in str(each) for each in check_remote(folder).problems)


def test_a_shard_that_names_what_is_not_there_is_refused(
    filled: Store, folder: FolderRemote, tmp_path: Path
) -> None:
    push_all(filled, folder)
    (shard,) = (folder.root / "log").iterdir()
    leaf = {"digest": f"sha256:{'0' * 64}", "name": f"records/{'0' * 64}.json", "size_bytes": 3}
    with shard.open("ab") as file:
        file.write(canonical_bytes(leaf) + b"\n")
    back = Store(tmp_path / "back")
    (refused,) = pull_all(folder, back).refused
    assert shard.name in refused
    # Nothing of it is here, and all that was moved was logged.
    assert verify_store(back.root) == []
    assert "the log names it" in "".join(map(str, check_remote(folder).problems))


def test_a_shard_that_somebody_rewrote_is_refused_in_both_directions(
    filled: Store, folder: FolderRemote, tmp_path: Path
) -> None:
    push_all(filled, folder)
    (shard,) = (folder.root / "log").iterdir()
    lines = shard.read_bytes().splitlines(keepends=True)
    shard.write_bytes(b"".join(reversed(lines)))
    before = shard.read_bytes()
    for done in (push_all(filled, folder), pull_all(folder, filled)):
        (refused,) = done.refused
        assert "somebody rewrote one" in refused
    assert shard.read_bytes() == before
    assert verify_store(filled.root) == []


def test_a_signature_of_something_else_is_refused(
    filled: Store, folder: FolderRemote, tmp_path: Path
) -> None:
    push_all(filled, folder)
    (signature,) = (folder.root / "signatures").iterdir()
    signed, other = filled.digests("records")
    signature.rename(signature.with_name(signature.name.replace(signed[7:], other[7:])))
    back = Store(tmp_path / "back")
    refused = pull_all(folder, back).refused
    assert any("is no signature of this record" in text for text in refused)
    assert not (back.root / "signatures").exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("name", [f"records/{'a' * 64}.json", f"log/{'b' * 32}.jsonl"])
def test_what_is_no_file_is_not_passed_over(
    make: Callable[[Path], None], name: str, filled: Store, folder: FolderRemote, tmp_path: Path
) -> None:
    push_all(filled, folder)
    make(folder.root / name)
    (refused,) = pull_all(folder, Store(tmp_path / "back")).refused
    assert name in refused
    (problem,) = check_remote(folder).problems
    assert (problem.path, problem.kind) == (f"{folder.url}/{name}", "unsafe")


def test_a_push_does_not_take_what_is_no_file_for_a_copy(
    filled: Store, folder: FolderRemote
) -> None:
    name = f"records/{filled.digests('records')[0][7:]}.json"
    (folder.root / name).mkdir(parents=True)
    refused = push_all(filled, folder).refused
    assert any(name in text and "no regular file" in text for text in refused)


def test_a_shard_that_ends_in_a_part_of_a_line_is_named(
    filled: Store, folder: FolderRemote, tmp_path: Path
) -> None:
    push_all(filled, folder)
    (shard,) = (folder.root / "log").iterdir()
    shard.write_bytes(shard.read_bytes()[:-1])
    assert [each.kind for each in check_remote(folder).problems] == ["torn"]
    assert shard.name in "".join(pull_all(folder, Store(tmp_path / "back")).refused)


@pytest.mark.parametrize("wrong", [b"", b"short", b"longer than any statement" * 3000])
def test_a_push_overwrites_nothing_and_names_what_is_in_its_place(
    wrong: bytes, filled: Store, folder: FolderRemote
) -> None:
    record = filled.digests("records")[0]
    path = folder.root / "records" / f"{record[7:]}.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(wrong)
    done = push_all(filled, folder)
    assert any(path.name in text and f"{len(wrong)} bytes" in text for text in done.refused)
    assert path.read_bytes() == wrong
    # What names it stays behind, too, and so does the log.
    assert len(list((folder.root / "verdicts").iterdir())) == 1
    assert not (folder.root / "log").exists()


def test_a_file_that_is_damaged_here_is_not_sent_and_not_blamed_on_the_other_side(
    filled: Store, folder: FolderRemote
) -> None:
    push_all(filled, folder)
    record = filled.digests("records")[0]
    table = table_of(filled.root, record)
    data = table.read_bytes()
    for damaged in (data + b"?", data[:-1] + b"?"):
        table.write_bytes(damaged)
        (folder.root / "tables" / table.name).unlink(missing_ok=True)
        if len(damaged) > len(data):
            (folder.root / "tables" / table.name).write_bytes(data)
        refused = push_all(filled, folder).refused
        assert any("file was changed" in text and str(table) in text for text in refused)
        assert not any("holds something else" in text for text in refused)


@dataclass(frozen=True)
class Liar:
    """Says of every name that it is there, in any size, and gives the same bytes without end."""

    listed: tuple[str, ...]
    size_bytes: int
    url: str = "liar://"

    def names(self, folder: str) -> dict[str, int]:
        return dict.fromkeys(self.listed, self.size_bytes) if folder == "records" else {}

    def size(self, name: str) -> int | None:
        assert name.count("/") == 1
        assert ".." not in name
        return self.size_bytes

    def pieces(self, name: str, size_bytes: int) -> Iterator[bytes]:
        assert size_bytes <= 64 * 1024
        yield b"x" * size_bytes

    def put(self, name: str, data: bytes, *, replace: bool = False) -> None:
        raise AssertionError("nothing is pushed")


@pytest.mark.parametrize("size", [0, 10, 1 << 60])
def test_names_and_sizes_are_bounded_before_anything_is_read(size: int, tmp_path: Path) -> None:
    proper, capital = f"{'a' * 64}.json", f"{'A' * 64}.json"
    names = ("../../etc/passwd", "..", "/etc/passwd", "a\0b", proper, capital)
    back = Store(tmp_path / "back")
    (refused,) = pull_all(Liar(names, size), back).refused
    assert proper in refused
    assert not back.root.exists()
    assert len(check_remote(Liar(names, size)).problems) == len(names)

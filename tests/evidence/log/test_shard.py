import os
import threading
from pathlib import Path

import pytest

from harness.errors import EvidenceError
from harness.evidence.log.merkle import leaf_hash, tree_head
from harness.evidence.log.shard import (
    Leaf,
    decode_leaf,
    has_log,
    not_yet_logged,
    read_log,
    read_shard,
    shard_path,
)
from harness.evidence.log.writer import ShardWriter, append_durable, start_log
from harness.evidence.store import Store

HEX = "ab" * 32


def leaf(number: int, folder: str = "tables", suffix: str = "parquet") -> Leaf:
    digest = f"{number:064x}"
    return Leaf(name=f"{folder}/{digest}.{suffix}", size_bytes=number, digest=f"sha256:{digest}")


def test_a_leaf_is_its_canonical_json() -> None:
    signature = Leaf(name=f"signatures/{HEX}.{HEX}.json", size_bytes=0, digest=f"sha256:{HEX}")
    assert signature.encode().decode() == (
        f'{{"digest":"sha256:{HEX}","name":"signatures/{HEX}.{HEX}.json","size_bytes":0}}'
    )
    for each in (signature, leaf(1), leaf(10**12)):
        assert decode_leaf(each.encode()) == each


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{}",
        f'{{"digest": "sha256:{HEX}","name":"tables/{HEX}.parquet","size_bytes":1}}',
        f'{{"name":"tables/{HEX}.parquet","digest":"sha256:{HEX}","size_bytes":1}}',
        f'{{"digest":"sha256:{HEX}","name":"tables/{HEX}.parquet","size_bytes":01}}',
        f'{{"digest":"sha256:{HEX}","name":"tables/{HEX}.parquet","size_bytes":-1}}',
        f'{{"digest":"sha256:{HEX}","name":"tables/{HEX}.parquet","size_bytes":1.0}}',
        f'{{"digest":"sha256:{HEX}","name":"tables/{HEX}.parquet","size_bytes":{"9" * 400}}}',
        f'{{"digest":"sha256:{HEX.upper()}","name":"tables/{HEX}.parquet","size_bytes":1}}',
        f'{{"digest":"sha256:{HEX}","name":"../tables/{HEX}.parquet","size_bytes":1}}',
        f'{{"digest":"sha256:{HEX}","name":"/tables/{HEX}.parquet","size_bytes":1}}',
        f'{{"digest":"sha256:{HEX}","name":"tables/../{HEX}.parquet","size_bytes":1}}',
        f'{{"digest":"sha256:{HEX}","name":"a/tables/{HEX}.parquet","size_bytes":1}}',
        f'{{"digest":"sha256:{HEX}","name":"tables/{HEX}.parquet","size_bytes":1}}\r',
        f'{{"digest":"sha256:{HEX}","name":"tables/{HEX}.parquet","size_bytes":1}} ',
    ],
)
def test_what_is_not_a_leafs_canonical_form_is_none(line: str) -> None:
    assert decode_leaf(line.encode()) is None


def test_a_writer_appends_to_one_shard_of_its_own(tmp_path: Path) -> None:
    start_log(tmp_path)
    writer = ShardWriter()
    writer.append(tmp_path, [leaf(1), leaf(2)])
    writer.append(tmp_path, [])
    writer.append(tmp_path, [leaf(3)])
    (shard,) = read_log(tmp_path)
    assert list(shard.leaves()) == [leaf(1), leaf(2), leaf(3)]
    assert shard.torn == b""
    assert shard.head(2) == tree_head(leaf_hash(leaf(n).encode()) for n in (1, 2))
    assert shard.head() == tree_head(leaf_hash(leaf(n).encode()) for n in (1, 2, 3))
    ShardWriter().append(tmp_path, [leaf(4)])
    assert sorted(len(each.lines) for each in read_log(tmp_path)) == [1, 3]


def test_a_thread_and_a_forked_child_have_shards_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_log(tmp_path)
    writer = ShardWriter()
    writer.append(tmp_path, [leaf(1)])
    thread = threading.Thread(target=writer.append, args=(tmp_path, [leaf(2)]))
    thread.start()
    thread.join()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: 4194305)
        writer.append(tmp_path, [leaf(3)])
    writer.append(tmp_path, [leaf(4)])
    shards = [list(shard.leaves()) for shard in read_log(tmp_path)]
    assert sorted(shards, key=str) == [[leaf(1), leaf(4)], [leaf(2)], [leaf(3)]]


def test_a_full_shard_and_a_removed_one_are_followed_by_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_log(tmp_path)
    line = len(leaf(1).encode()) + 1
    monkeypatch.setattr("harness.evidence.log.writer.MAX_SHARD_BYTES", 2 * line)
    writer = ShardWriter()
    for number in range(1, 6):
        writer.append(tmp_path, [leaf(number)])
    assert sorted(len(shard.lines) for shard in read_log(tmp_path)) == [1, 2, 2]
    (current,) = [shard for shard in read_log(tmp_path) if len(shard.lines) == 1]
    current.path.unlink()
    writer.append(tmp_path, [leaf(6)])
    assert not current.path.exists()
    assert {leaf(6)} in [set(shard.leaves()) for shard in read_log(tmp_path)]


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_failed_append_leaves_the_shard_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    start_log(tmp_path)
    writer = ShardWriter()
    writer.append(tmp_path, [leaf(1)])
    (before,) = read_log(tmp_path)
    real = os.write

    def fail(descriptor: int, data: bytes = b"") -> int:
        if data:
            real(descriptor, data[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        writer.append(tmp_path, [leaf(2)])
    with pytest.raises(OSError, match="No space left"):
        ShardWriter().append(tmp_path, [leaf(2)])
    monkeypatch.undo()
    assert list(read_log(tmp_path)) == [before]
    writer.append(tmp_path, [leaf(2)])
    assert sorted(len(shard.lines) for shard in read_log(tmp_path)) == [1, 1]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_log(tmp_path)
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    ShardWriter().append(tmp_path, [leaf(1), leaf(2)])
    (shard,) = read_log(tmp_path)
    assert list(shard.leaves()) == [leaf(1), leaf(2)]


def test_a_torn_line_is_no_leaf(tmp_path: Path) -> None:
    start_log(tmp_path)
    path = shard_path(tmp_path, "0" * 32)
    whole = leaf(1).encode() + b"\n"
    # Also one that lacks nothing but its line feed.
    for torn in (leaf(2).encode()[:30], leaf(2).encode()):
        path.write_bytes(whole + torn)
        shard = read_shard(path)
        assert list(shard.leaves()) == [leaf(1)]
        assert (shard.torn, shard.num_bytes) == (torn, len(whole))
        assert shard.head() == leaf_hash(leaf(1).encode())


def test_what_no_shard_names_is_found(tmp_path: Path) -> None:
    assert not has_log(tmp_path)
    assert not_yet_logged(tmp_path, [leaf(1)]) == [leaf(1)]
    start_log(tmp_path)
    start_log(tmp_path)
    assert has_log(tmp_path)
    ShardWriter().append(tmp_path, [leaf(1)])
    ShardWriter().append(tmp_path, [leaf(3)])
    wanted = [leaf(number) for number in (4, 3, 2, 1)]
    assert not_yet_logged(tmp_path, wanted) == [leaf(4), leaf(2)]


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    store = tmp_path / "store"
    store.mkdir()
    (store / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EvidenceError, match="not a folder of a store"):
        list(read_log(store))
    with pytest.raises(EvidenceError, match="not a folder of a store"):
        Store(store).start_log()
    (store / "log").unlink()
    start_log(store)
    outside = tmp_path / "outside.jsonl"
    outside.write_bytes(b"")
    path = shard_path(store, "0" * 32)
    path.symlink_to(outside)
    with pytest.raises(EvidenceError, match="symbolic link"):
        read_shard(path)
    with pytest.raises(OSError, match="symbolic link"):
        append_durable(path, b"x")
    assert outside.read_bytes() == b""


@pytest.mark.parametrize("name", ["0" * 31 + ".jsonl", "0" * 32 + ".json", "A" * 32 + ".jsonl"])
def test_a_shard_is_named_like_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(EvidenceError, match="not a shard"):
        read_shard(tmp_path / name)


def test_an_endless_shard_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ("0" * 32 + ".jsonl")
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(EvidenceError, match="too long"):
        read_shard(path)

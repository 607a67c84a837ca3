import hashlib
import mmap
import os
import threading
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoint import reader as reader_module
from harness.checkpoint.reader import BoundedReader, ReadEntry, SourceAccessError
from harness.errors import CheckpointError, ExitCode
from harness.evidence import tables
from harness.team import Team

SIZES = {"a": 5, "b": 0, "c": 3000}


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def planned(key: str, content: bytes, file: str = "model.safetensors", **changes: Any) -> ReadEntry:
    fields: dict[str, Any] = {
        "key": key,
        "file": file,
        "dtype": "uint8",
        "shape": (len(content),),
        "num_bytes": len(content),
        "sha256": sha256(content),
    }
    return ReadEntry(**{**fields, **changes})


def all_planned(contents: dict[str, bytes], file: str = "model.safetensors") -> list[ReadEntry]:
    return [planned(key, content, file) for key, content in contents.items()]


def read(reader: BoundedReader, key: str, size: int) -> bytes:
    buffer = bytearray(size)
    reader.read_into(key, memoryview(buffer))
    return bytes(buffer)


def checkpoint_descriptors(root: Path) -> list[str]:
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return [link for link in links if link.startswith(str(root))]


def test_reads_each_tensor_and_keeps_the_books(tmp_path: Path, write_tensors: Any) -> None:
    first = write_tensors(SIZES, name="x/1.safetensors")
    second = write_tensors({"d": 70, "e": 1}, name="2.safetensors")
    entries = all_planned(first, "x/1.safetensors") + all_planned(second, "2.safetensors")
    reader = BoundedReader(tmp_path, entries)
    assert checkpoint_descriptors(tmp_path) == []
    assert reader.unfetched() == ("a", "b", "c", "d", "e")
    assert read(reader, "c", 3000) == first["c"]
    assert len(checkpoint_descriptors(tmp_path)) == 1
    assert read(reader, "d", 70) == second["d"]
    assert checkpoint_descriptors(tmp_path) == [str(tmp_path / "2.safetensors")]
    assert read(reader, "a", 5) == first["a"]
    assert read(reader, "b", 0) == b""
    assert checkpoint_descriptors(tmp_path) == []  # the last planned tensor of the file
    assert reader.unfetched() == ("e",)
    reader.close()
    assert reader.source_rows() == [
        # One open and close each for the header, then one for each run of reads.
        {
            "file": "2.safetensors",
            "size_bytes": (tmp_path / "2.safetensors").stat().st_size,
            "num_opens": 2,
            "num_closes": 2,
        },
        {
            "file": "x/1.safetensors",
            "size_bytes": (tmp_path / "x/1.safetensors").stat().st_size,
            "num_opens": 3,
            "num_closes": 3,
        },
    ]
    assert reader.records()[0] == {
        "key": "a",
        "file": "x/1.safetensors",
        "dtype": "uint8",
        "shape": [5],
        "bytes": 5,
        "digest": sha256(first["a"]),
        "num_fetches": 1,
    }
    assert [row["key"] for row in reader.records()] == ["a", "b", "c", "d"]
    assert tables.encode("fetches", reader.records())[1] == 4
    assert tables.encode("sources", reader.source_rows())[1] == 2


def test_pieces_are_joined_and_memory_is_bounded(tmp_path: Path, write_tensors: Any) -> None:
    size = 3 * reader_module.PIECE_BYTES + 17
    contents = write_tensors({"head": 3, "big": size})
    reader = BoundedReader(tmp_path, all_planned(contents))
    buffer = bytearray(size)
    tracemalloc.start()
    try:
        reader.read_into("big", memoryview(buffer))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert buffer == contents["big"]


def test_short_reads_of_the_kernel_are_continued(
    tmp_path: Path, write_tensors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = write_tensors({"a": 1000})
    reader = BoundedReader(tmp_path, all_planned(contents))
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: whole(fd, [parts[0][:300]], at))
    assert read(reader, "a", 1000) == contents["a"]


def test_views_of_any_shape_and_type(tmp_path: Path, write_tensors: Any) -> None:
    np = pytest.importorskip("numpy")
    contents = write_tensors({"a": 24, "b": 24, "z": 0})
    reader = BoundedReader(tmp_path, all_planned(contents))
    target = np.zeros((2, 3), dtype="float32")
    reader.read_into("a", memoryview(target))
    assert target.tobytes() == contents["a"]
    with pytest.raises(CheckpointError, match="does not fit") as caught:
        reader.read_into("b", memoryview(np.zeros((3, 4), dtype="float32")[:, ::2]))
    assert "strided" in str(caught.value)
    reader.read_into("z", memoryview(np.zeros((0, 4), dtype="float32")))


@pytest.mark.parametrize("size", [100, 3 * reader_module.PIECE_BYTES + 5])
@pytest.mark.parametrize("ends_early", [False, True])
def test_release_of_the_memory_is_not_held_back(
    tmp_path: Path,
    write_tensors: Any,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    ends_early: bool,
) -> None:
    contents = write_tensors({"a": size})
    reader = BoundedReader(tmp_path, all_planned(contents))
    mapping = mmap.mmap(-1, size)
    view = memoryview(mapping)
    if ends_early:
        whole = os.preadv
        last = (size - 1) // reader_module.PIECE_BYTES * reader_module.PIECE_BYTES
        start = (tmp_path / "model.safetensors").stat().st_size - size
        monkeypatch.setattr(
            os, "preadv", lambda fd, parts, at: 0 if at >= start + last else whole(fd, parts, at)
        )
        with pytest.raises(CheckpointError, match="ends early") as caught:
            reader.read_into("a", view)
        assert caught.value.__traceback__ is not None
    else:
        reader.read_into("a", view)
    view.release()
    mapping.close()  # raises BufferError while anything holds a view


def test_refusals_before_reading(tmp_path: Path, write_tensors: Any) -> None:
    contents = write_tensors(SIZES)
    del contents["b"]
    reader = BoundedReader(tmp_path, all_planned(contents))
    for key, buffer, message in (
        ("b", bytearray(0), "'b' is not planned"),
        ("nothing", bytearray(5), "'nothing' is not planned"),
        ("a", bytearray(4), "does not fit"),
        ("a", bytearray(6), "does not fit"),
        ("a", bytes(5), "read-only"),
    ):
        with pytest.raises(CheckpointError) as caught:
            reader.read_into(key, memoryview(buffer))
        assert message in str(caught.value)
    assert reader.records() == []
    assert read(reader, "a", 5) == contents["a"]


def test_a_second_read_is_refused_and_shows(tmp_path: Path, write_tensors: Any) -> None:
    contents = write_tensors(SIZES)
    reader = BoundedReader(tmp_path, all_planned(contents))
    read(reader, "a", 5)
    for number in (2, 3):
        with pytest.raises(CheckpointError, match="already read") as caught:
            read(reader, "a", 5)
        assert f"read number {number}" in str(caught.value)
    assert reader.records()[0]["num_fetches"] == 3


def test_seal_refuses_and_counts(tmp_path: Path, write_tensors: Any) -> None:
    contents = write_tensors(SIZES)
    reader = BoundedReader(tmp_path, all_planned(contents))
    read(reader, "a", 5)
    assert not reader.is_sealed
    reader.seal()
    assert reader.is_sealed
    assert checkpoint_descriptors(tmp_path) == []
    assert reader.num_refused == 0
    for key in ("c", "a", "nothing"):
        with pytest.raises(SourceAccessError) as caught:
            read(reader, key, 5)
        assert caught.value.exit_code == ExitCode.FAILED
        assert repr(key) in str(caught.value)
    assert reader.num_refused == 3
    assert reader.records()[0]["num_fetches"] == 1
    assert reader.source_rows()[0]["num_opens"] == reader.source_rows()[0]["num_closes"] == 2


def test_a_pinned_digest_that_differs(tmp_path: Path, write_tensors: Any) -> None:
    contents = write_tensors(SIZES)
    wrong = sha256(b"something else")
    entries = [planned("a", contents["a"], sha256=wrong), planned("c", contents["c"], sha256=None)]
    reader = BoundedReader(tmp_path, entries)
    with pytest.raises(CheckpointError, match="not the pinned one") as caught:
        read(reader, "a", 5)
    assert wrong in str(caught.value)
    assert sha256(contents["a"]) in str(caught.value)
    assert reader.unfetched() == ("a", "c")
    assert checkpoint_descriptors(tmp_path) == []
    read(reader, "c", 3000)
    assert reader.records()[0]["digest"] == sha256(contents["c"])


def test_opening_lists_every_disagreement(tmp_path: Path, write_tensors: Any) -> None:
    contents = write_tensors({"a": 8, "b": 8, "c": 8, "d": 8})
    (tmp_path / "page.safetensors").write_text("<!doctype html>" + " " * 100)
    entries = [
        planned("a", contents["a"], dtype="int8"),
        planned("b", contents["b"], shape=(2, 4)),
        planned("c", contents["c"], num_bytes=9),
        planned("d", contents["d"], sha256="sha256:12"),
        planned("d", contents["d"]),
        planned("e", b""),
        planned("f", b"", "page.safetensors"),
        planned("g", b"", "none.safetensors"),
    ]
    with pytest.raises(CheckpointError) as caught:
        BoundedReader(tmp_path, entries)
    lines = [line for line in str(caught.value).splitlines() if line.startswith("    - ")]
    assert lines == sorted(lines)
    assert [line[6:].split(" ")[0] for line in lines] == [
        "'a':",
        "'b':",
        "'c':",
        "'d':",
        "'d':",
        "'e':",
        "none.safetensors:",
        "page.safetensors:",
    ]
    for part in ("planned dtype int8", "shape (2, 4)", "bytes 9", "more than once", "HTML page"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "../out.safetensors",
        "x/../../out.safetensors",
        "/etc/passwd",
        "",
        "x//1.safetensors",
        "./1.safetensors",
        "..",
        ".",
        "a\\b.safetensors",
        "a\0b",
        "a\nb",
    ],
)
def test_hostile_names(tmp_path: Path, write_tensors: Any, name: str) -> None:
    write_tensors({"a": 1}, name="out.safetensors")
    root = tmp_path / "root"
    (root / "x").mkdir(parents=True)
    with pytest.raises(CheckpointError) as caught:
        BoundedReader(root, [planned("a", b".", name)])
    assert "file name" in str(caught.value)
    assert "\nb" not in str(caught.value)


def test_links_out_of_the_root(tmp_path: Path, write_tensors: Any) -> None:
    contents = write_tensors({"a": 4}, name="blobs/real.safetensors")
    inside = write_tensors({"b": 4}, name="root/real.safetensors")
    root = tmp_path / "root"
    (root / "link.safetensors").symlink_to("../blobs/real.safetensors")
    (root / "folder").symlink_to(tmp_path / "blobs")
    (root / "loop.safetensors").symlink_to("loop.safetensors")
    (root / "good.safetensors").symlink_to("real.safetensors")
    for name in ("link.safetensors", "folder/real.safetensors"):
        with pytest.raises(CheckpointError, match="hold what is to be read") as caught:
            BoundedReader(root, [planned("a", contents["a"], name)])
        assert "leads out of the checkpoint's folder" in str(caught.value)
    with pytest.raises(CheckpointError, match="hold what is to be read"):
        BoundedReader(root, [planned("a", contents["a"], "loop.safetensors")])
    sibling = tmp_path / "root2"
    sibling.mkdir()
    (sibling / "r.safetensors").write_bytes((root / "real.safetensors").read_bytes())
    (root / "near.safetensors").symlink_to("../root2/r.safetensors")
    with pytest.raises(CheckpointError, match="hold what is to be read"):
        BoundedReader(root, [planned("b", inside["b"], "near.safetensors")])
    linked_root = tmp_path / "linked"
    linked_root.symlink_to(root)
    reader = BoundedReader(linked_root, [planned("b", inside["b"], "good.safetensors")])
    assert read(reader, "b", 4) == inside["b"]


def rewrite(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"?")
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    status = path.stat()
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    copy.rename(path)


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b".")


@pytest.mark.parametrize("change", [rewrite, replace, shorten, lengthen])
def test_a_file_that_changed_since_open(
    tmp_path: Path, write_tensors: Any, change: Callable[[Path], None]
) -> None:
    contents = write_tensors(SIZES)
    reader = BoundedReader(tmp_path, all_planned(contents))
    change(tmp_path / "model.safetensors")
    buffer = bytearray(b"unread" * 500)
    with pytest.raises(CheckpointError, match="changed since"):
        reader.read_into("c", memoryview(buffer))
    assert buffer == b"unread" * 500
    assert checkpoint_descriptors(tmp_path) == []
    row = reader.source_rows()[0]
    assert row["num_opens"] == row["num_closes"] == 2


def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, write_tensors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = write_tensors(SIZES)
    entries = [planned(key, content, sha256=None) for key, content in contents.items()]
    reader = BoundedReader(tmp_path, entries)
    whole = os.preadv

    def preadv(descriptor: int, parts: list[memoryview], offset: int) -> int:
        count = whole(descriptor, parts, offset)
        rewrite(tmp_path / "model.safetensors")
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(CheckpointError, match="changed since"):
        read(reader, "a", 5)
    assert "a" in reader.unfetched()


def test_a_file_that_ends_early(
    tmp_path: Path, write_tensors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = write_tensors(SIZES)
    reader = BoundedReader(tmp_path, all_planned(contents))
    whole = os.preadv

    end = (tmp_path / "model.safetensors").stat().st_size - 3003

    def preadv(descriptor: int, parts: list[memoryview], offset: int) -> int:
        os.truncate(tmp_path / "model.safetensors", end)
        return whole(descriptor, parts, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(CheckpointError, match="ends early") as caught:
        read(reader, "a", 5)
    assert "2 bytes" in str(caught.value)


def test_leaving_the_context_closes(tmp_path: Path, write_tensors: Any) -> None:
    contents = write_tensors(SIZES)
    with BoundedReader(tmp_path, all_planned(contents)) as reader:
        read(reader, "a", 5)
    assert checkpoint_descriptors(tmp_path) == []
    row = reader.source_rows()[0]
    assert row["num_opens"] == row["num_closes"] == 2


@pytest.fixture
def team() -> Iterator[Team]:
    before = threading.active_count()
    with Team(3) as made:
        yield made
    assert threading.active_count() == before


def test_several_at_a_time(tmp_path: Path, write_tensors: Any, team: Team) -> None:
    sizes = {f"t{index:02d}": (index % 5) * reader_module.PIECE_BYTES // 2 for index in range(12)}
    first = write_tensors(sizes, name="1.safetensors")
    second = write_tensors(
        {f"u{key}": size + 1 for key, size in sizes.items()}, name="2.safetensors"
    )
    entries = all_planned(first, "1.safetensors") + all_planned(second, "2.safetensors")
    reader = BoundedReader(tmp_path, entries, team)
    buffers = {entry.key: bytearray(entry.num_bytes) for entry in entries}
    # All of the first file is under way when the second is opened, and only one stays open.
    readings = [reader.begin(key, memoryview(buffer)) for key, buffer in buffers.items()]
    assert checkpoint_descriptors(tmp_path) == [str(tmp_path / "2.safetensors")]
    for reading in reversed(readings[:12]):
        reader.finish(reading)
    # The last planned tensor of the first file closes that file, and no other.
    assert checkpoint_descriptors(tmp_path) == [str(tmp_path / "2.safetensors")]
    for reading in reversed(readings[12:]):
        reader.finish(reading)
    assert checkpoint_descriptors(tmp_path) == []
    assert buffers == first | second
    assert reader.unfetched() == ()
    assert [row["digest"] for row in reader.records()] == [
        sha256(content) for _, content in sorted((first | second).items())
    ]
    assert {row["num_fetches"] for row in reader.records()} == {1}
    assert [(row["num_opens"], row["num_closes"]) for row in reader.source_rows()] == [(2, 2)] * 2


def test_threads_bring_one_tensor_each(
    tmp_path: Path, write_tensors: Any, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = write_tensors({"a": 10, "b": 20, "c": 30})
    reader = BoundedReader(tmp_path, all_planned(contents), team)
    whole, together = os.preadv, threading.Barrier(3)

    def preadv(descriptor: int, parts: list[memoryview], offset: int) -> int:
        together.wait(30)  # passes when all three are read at once
        return whole(descriptor, parts, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    buffers = {key: bytearray(len(content)) for key, content in contents.items()}
    for reading in [reader.begin(key, memoryview(each)) for key, each in buffers.items()]:
        reader.finish(reading)
    assert buffers == contents


def test_bytes_count_when_they_are_finished(tmp_path: Path, write_tensors: Any, team: Team) -> None:
    contents = write_tensors(SIZES)
    reader = BoundedReader(tmp_path, all_planned(contents), team)
    reading = reader.begin("c", memoryview(bytearray(3000)))
    reader.close()
    assert reader.unfetched() == ("a", "b", "c")
    with pytest.raises(CheckpointError, match="already read"):
        reader.begin("c", memoryview(bytearray(3000)))
    reader.finish(reading)
    assert reader.unfetched() == ("a", "b")
    # The attempt shows, as one after the reading would.
    assert [row["num_fetches"] for row in reader.records()] == [2]


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize(
    "fault", ["short", "changed", "digest", "kernel"], ids=lambda fault: f"fault-{fault}"
)
def test_a_fault_in_a_thread_is_told_as_one_in_turn(
    tmp_path: Path,
    write_tensors: Any,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    num_threads: int,
) -> None:
    contents = write_tensors({"a": 5, "b": 2 * reader_module.PIECE_BYTES, "c": 3000})
    entries = all_planned(contents)
    path = tmp_path / "model.safetensors"
    start = path.stat().st_size - sum(map(len, contents.values()))
    if fault == "digest":
        entries[1] = planned("b", contents["b"], sha256=sha256(b"other"))
    whole = os.preadv

    def preadv(descriptor: int, parts: list[memoryview], offset: int) -> int:
        # Of b's second piece.
        if offset == start + 5 + reader_module.PIECE_BYTES:
            if fault == "short":
                return 0
            if fault == "changed":
                os.utime(path, ns=(1, 1))
            if fault == "kernel":
                parts.clear()
                raise OSError(5, "Input/output error")
        return whole(descriptor, parts, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    message = {
        "short": "tensor 'b' ends early",
        "changed": "the file changed since the reader was opened",
        "digest": "tensor 'b' is not the pinned one",
        "kernel": "Input/output error",
    }[fault]
    before = threading.active_count()
    with Team(num_threads) as hands:
        reader = BoundedReader(tmp_path, entries, hands)
        mappings = {entry.key: mmap.mmap(-1, entry.num_bytes) for entry in entries}
        views = {key: memoryview(mapping) for key, mapping in mappings.items()}
        # Where nothing runs beside, the file has changed before the next reading begins.
        keys = "ab" if fault == "changed" else "abc"
        readings = [reader.begin(key, views[key]) for key in keys]
        with pytest.raises((CheckpointError, OSError), match=message) as caught:
            deque(map(reader.finish, readings))
        if fault != "kernel":
            assert caught.value.where == "model.safetensors"  # type: ignore[union-attr]
        assert "b" in reader.unfetched()
        assert checkpoint_descriptors(tmp_path) == []
        # Nobody else holds the callers' memory, though the error is still there.
        for key, mapping in mappings.items():
            views[key].release()
            mapping.close()
    assert threading.active_count() == before

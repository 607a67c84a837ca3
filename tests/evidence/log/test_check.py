"""What the log inside a store shows, and what only a checkpoint kept elsewhere shows."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from harness.errors import EvidenceError
from harness.evidence.log.check import check_against
from harness.evidence.log.checkpoint import Checkpoint, make_checkpoint
from harness.evidence.log.shard import read_log, shard_path
from harness.evidence.scan import Problem
from harness.evidence.store import Store
from harness.evidence.verify import verify_store


def record_of(store: Store, experiment: str) -> Path:
    for digest in store.digests("records"):
        if store.read_record(digest)["predicate"]["experiment"] == experiment:
            return store.path("records", digest)
    raise AssertionError(experiment)


def relative(store: Store, problems: list[Problem]) -> list[tuple[str, str]]:
    assert problems == sorted(problems)
    return [(str(Path(p.path).relative_to(store.root)), p.kind) for p in problems]


def found(store: Store) -> list[tuple[str, str]]:
    return relative(store, verify_store(store.root))


def lost(store: Store, checkpoint: Checkpoint) -> list[tuple[str, str]]:
    return relative(store, check_against(store.root, checkpoint))


def forget(store: Store, *records: Path) -> list[str]:
    """Remove records, what only they name, and their lines; everything left agrees again.

    Returns:
        The names of the shards that were rewritten.
    """
    for record in records:
        record.unlink()
    while orphans := [p.path for p in verify_store(store.root) if p.kind == "extra"]:
        for orphan in orphans:
            Path(orphan).unlink()
    rewritten = []
    for shard in list(read_log(store.root)):
        kept = [
            line
            for line, leaf in zip(shard.lines, shard.leaves(), strict=True)
            if leaf is not None and (store.root / leaf.name).exists()
        ]
        if len(kept) < len(shard.lines):
            shard.path.write_bytes(b"".join(line + b"\n" for line in kept))
            rewritten.append(f"log/{shard.path.name}")
    return rewritten


def test_a_store_that_only_grew_passes(logged: Store, sample: ModuleType) -> None:
    checkpoint = make_checkpoint(logged.root)
    assert lost(logged, checkpoint) == []
    sample.put_record(logged, salt="e", experiment="e")
    sample.put_record(Store(logged.root), salt="f", experiment="f")
    assert lost(logged, checkpoint) == []
    assert lost(logged, make_checkpoint(logged.root)) == []


def test_a_removed_record_is_named_by_the_log_and_by_the_checkpoint(logged: Store) -> None:
    checkpoint = make_checkpoint(logged.root)
    record = record_of(logged, "c")
    record.unlink()
    name = f"records/{record.name}"
    assert (name, "missing") in found(logged)
    assert lost(logged, checkpoint) == [(name, "missing")]


@pytest.mark.parametrize("experiments", [("b",), ("c",), ("b", "c"), ("b", "c", "d")])
def test_records_removed_with_every_trace_are_all_named(
    logged: Store, experiments: tuple[str, ...]
) -> None:
    checkpoint = make_checkpoint(logged.root)
    records = [record_of(logged, experiment) for experiment in experiments]
    rewritten = forget(logged, *records)
    assert rewritten
    # The store itself shows nothing any more.
    assert found(logged) == []
    expected = [(f"records/{record.name}", "missing") for record in records]
    assert lost(logged, checkpoint) == sorted(
        [*expected, *((shard, "rewritten") for shard in rewritten)]
    )


def test_a_record_replaced_with_every_trace_is_named(logged: Store, sample: ModuleType) -> None:
    checkpoint = make_checkpoint(logged.root)
    record = record_of(logged, "d")
    rewritten = forget(logged, record)
    sample.put_record(Store(logged.root), salt="better", experiment="d")
    assert found(logged) == []
    assert lost(logged, checkpoint) == sorted(
        [(f"records/{record.name}", "missing"), *((name, "rewritten") for name in rewritten)]
    )


def test_a_record_changed_in_place_is_named(logged: Store) -> None:
    checkpoint = make_checkpoint(logged.root)
    record = record_of(logged, "b")
    record.write_bytes(record.read_bytes().replace(b'"passed"', b'"failed"') + b" ")
    assert lost(logged, checkpoint) == [(f"records/{record.name}", "modified")]


def test_a_table_replaced_is_named(logged: Store) -> None:
    checkpoint = make_checkpoint(logged.root)
    table = logged.path("tables", logged.digests("tables")[0])
    table.write_bytes(b"other")
    assert lost(logged, checkpoint) == [(f"tables/{table.name}", "modified")]


def test_a_removed_verdict_is_named(logged: Store) -> None:
    checkpoint = make_checkpoint(logged.root)
    (verdict,) = logged.digests("verdicts")
    path = logged.path("verdicts", verdict)
    rewritten = forget(logged, path)
    assert found(logged) == []
    assert (f"verdicts/{path.name}", "missing") in lost(logged, checkpoint)
    assert (rewritten[0], "rewritten") in lost(logged, checkpoint)


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda lines: lines[:-1],
        lambda lines: lines[1:],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [*lines[:3], lines[0], *lines[3:]],
        lambda lines: [],
    ],
)
def test_a_rewritten_shard_is_named(
    logged: Store, rewrite: Callable[[list[bytes]], list[bytes]]
) -> None:
    checkpoint = make_checkpoint(logged.root)
    shard = next(iter(read_log(logged.root)))
    shard.path.write_bytes(b"".join(line + b"\n" for line in rewrite(list(shard.lines))))
    assert lost(logged, checkpoint) == [(f"log/{shard.path.name}", "rewritten")]


def test_a_removed_shard_and_a_removed_log_are_named(logged: Store) -> None:
    checkpoint = make_checkpoint(logged.root)
    shards = [f"log/{shard.path.name}" for shard in read_log(logged.root)]
    (logged.root / shards[0]).unlink()
    assert lost(logged, checkpoint) == [(shards[0], "missing")]
    assert {kind for _, kind in found(logged)} == {"unlogged"}
    shutil.rmtree(logged.root / "log")
    assert lost(logged, checkpoint) == [(shard, "missing") for shard in shards]
    assert found(logged) == []


def test_another_store_is_not_taken_for_this_one(
    logged: Store, tmp_path: Path, sample: ModuleType
) -> None:
    checkpoint = make_checkpoint(logged.root)
    other = Store(tmp_path / "other")
    other.start_log()
    sample.put_record(other, salt="b", experiment="b")
    names = [name for name, _ in lost(other, checkpoint)]
    statements = {name for head in checkpoint.shards for name in head.statements}
    assert {name for name in names if name.startswith("log/")} == {
        f"log/{head.id}.jsonl" for head in checkpoint.shards
    }
    same = f"records/{record_of(other, 'b').name}"
    assert {name for name in names if not name.startswith("log/")} == statements - {same}
    with pytest.raises(EvidenceError, match="no evidence store"):
        check_against(tmp_path / "nothing", checkpoint)


@pytest.mark.parametrize("what", ["link", "folder", "pipe"])
def test_what_stands_in_the_place_of_a_record_does_not_count(
    logged: Store, tmp_path: Path, what: str
) -> None:
    checkpoint = make_checkpoint(logged.root)
    record = record_of(logged, "b")
    record.rename(tmp_path / "record")
    if what == "link":
        record.symlink_to(tmp_path / "record")
    elif what == "folder":
        record.mkdir()
    else:
        os.mkfifo(record)
    assert lost(logged, checkpoint) == [(f"records/{record.name}", "missing")]


def test_what_no_shard_names_is_named(logged: Store, sample: ModuleType) -> None:
    aside = logged.root.parent / "aside"
    (logged.root / "log").rename(aside)
    record = sample.put_record(logged, salt="e", experiment="e")
    aside.rename(logged.root / "log")
    problems = found(logged)
    assert (f"records/{record[7:]}.json", "unlogged") in problems
    assert {kind for _, kind in problems} == {"unlogged"}
    # Shared with the other records, which the log does name.
    assert not [name for name, _ in problems if name.startswith(("plans/", "manifests/"))]


def test_a_torn_line_and_foreign_files_in_the_log_are_named(logged: Store, tmp_path: Path) -> None:
    shards = list(read_log(logged.root))
    with shards[0].path.open("ab") as file:
        file.write(shards[0].lines[0][:40])
    lines = list(shards[1].lines)
    shards[1].path.write_bytes(b"\n".join([lines[0], b"{}", *lines[1:], b"x", b""]))
    (logged.root / "log" / "notes.txt").write_bytes(b"")
    link = shard_path(logged.root, "f" * 32)
    link.symlink_to(tmp_path / "nowhere")
    problems = verify_store(logged.root)
    assert relative(logged, problems) == sorted(
        [
            (f"log/{shards[0].path.name}", "torn"),
            (f"log/{shards[1].path.name}", "invalid"),
            ("log/notes.txt", "extra"),
            (f"log/{link.name}", "unsafe"),
        ]
    )
    (message,) = [problem.message for problem in problems if problem.kind == "invalid"]
    assert message == f"no leaf in line 2, {len(lines) + 2}"


def test_a_leaf_that_says_another_size_is_named(logged: Store) -> None:
    shard = next(iter(read_log(logged.root)))
    data = shard.path.read_bytes()
    shard.path.write_bytes(data.replace(b'"size_bytes":', b'"size_bytes":1', 1))
    (problem,) = verify_store(logged.root)
    first = next(iter(shard.leaves()))
    assert first is not None
    assert (problem.path, problem.kind) == (str(logged.root / first.name), "modified")
    assert f"1{first.size_bytes} bytes" in problem.message


def test_a_linked_log_is_reported_and_not_followed(logged: Store, tmp_path: Path) -> None:
    (logged.root / "log").rename(tmp_path / "log")
    (logged.root / "log").symlink_to(tmp_path / "log")
    assert found(logged) == [("log", "unsafe")]

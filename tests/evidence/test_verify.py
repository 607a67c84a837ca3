import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.canonical import sha256_digest
from harness.errors import EvidenceError
from harness.evidence.record import load_record
from harness.evidence.scan import Problem
from harness.evidence.statement import encode_statement, record_statement
from harness.evidence.store import Store
from harness.evidence.verify import verify_store


@pytest.fixture
def filled(store: Store, sample: ModuleType) -> Store:
    """A sound store with one record, of which one verdict exists."""
    sample.put_verdict(store, sample.put_record(store), failed=True)
    assert verify_store(store.root) == []
    return store


def found(store: Store) -> list[tuple[str, str]]:
    problems = verify_store(store.root)
    assert problems == sorted(problems)
    return [(str(Path(p.path).relative_to(store.root)), p.kind) for p in problems]


def only(store: Store, kind: Any) -> Path:
    (digest,) = store.digests(kind)
    return store.path(kind, digest)


def table_path(store: Store, name: str, realization: int | None) -> Path:
    (digest,) = store.digests("records")
    table = load_record(digest, store).table(name, realization)
    assert table is not None
    return store.path("tables", table.digest)


def relative(store: Store, path: Path) -> str:
    return str(path.relative_to(store.root))


def flip(path: Path, index: int = 20) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("kind", ["records", "verdicts", "plans", "manifests"])
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (flip, "modified"),
        (lambda path: path.write_bytes(path.read_bytes()[:-5]), "truncated"),
        (lambda path: path.write_bytes(b""), "truncated"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\n"), "modified"),
        (lambda path: path.write_bytes(b"other bytes\n"), "modified"),
    ],
)
def test_damaged_files(
    filled: Store, kind: Any, damage: Callable[[Path], None], expected: str
) -> None:
    path = only(filled, kind)
    damage(path)
    problems = dict(found(filled))
    assert problems.pop(relative(filled, path)) == expected
    # What only a record that cannot be read any more names is reported with it, and nothing else.
    assert set(problems.values()) <= ({"extra"} if kind in ("records", "verdicts") else set())


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (flip, "modified"),
        (lambda path: path.write_bytes(path.read_bytes()[:-5]), "truncated"),
        (lambda path: path.write_bytes(b""), "truncated"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\n"), "modified"),
    ],
)
def test_damaged_tables(filled: Store, damage: Callable[[Path], None], expected: str) -> None:
    path = table_path(filled, "steps", 0)
    damage(path)
    assert found(filled) == [(relative(filled, path), expected)]


@pytest.mark.parametrize("kind", ["plans", "manifests"])
def test_a_checkout_with_crlf_is_explained(filled: Store, kind: Any) -> None:
    path = only(filled, kind)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert found(filled) == [(relative(filled, path), "crlf")]
    (problem,) = verify_store(filled.root)
    assert ".gitattributes" in problem.message


@pytest.mark.parametrize("kind", ["plans", "manifests", "records"])
def test_missing_files(filled: Store, kind: Any) -> None:
    path = only(filled, kind)
    path.unlink()
    problems = found(filled)
    assert (relative(filled, path), "missing") in problems
    if kind != "records":
        assert len(problems) == 1


def test_a_missing_table_is_reported_once_with_who_names_it(filled: Store) -> None:
    path = table_path(filled, "steps", 1)
    path.unlink()
    (problem,) = verify_store(filled.root)
    assert (problem.path, problem.kind) == (str(path), "missing")
    assert "table steps of realization 0" in problem.message
    assert "1 more" in problem.message


def test_files_that_do_not_belong(filled: Store, sample: ModuleType) -> None:
    root = filled.root
    copied = table_path(filled, "trials", None)
    (root / "tables" / "copy.parquet").write_bytes(copied.read_bytes())
    (root / "tables" / copied.name.upper()).write_bytes(b"case")
    (root / "tables" / f"{copied.stem}.json").write_bytes(b"suffix")
    (root / "records" / ".gitkeep").write_bytes(b"")
    (root / "plans" / "deep").mkdir()
    (root / "notes.txt").write_bytes(b"x")
    (root / "surplus").mkdir()
    orphan = sample.put_rows(filled, "steps", sample.step_rows("orphan"))
    filled.put_plan(b"{}\n")
    assert sorted(found(filled)) == sorted(
        (name, "extra")
        for name in (
            "tables/copy.parquet",
            f"tables/{copied.name.upper()}",
            f"tables/{copied.stem}.json",
            "records/.gitkeep",
            "plans/deep",
            "notes.txt",
            "surplus",
            relative(filled, filled.path("tables", orphan.digest)),
            relative(filled, filled.path("plans", sha256_digest(b"{}\n"))),
        )
    )


@pytest.mark.parametrize("new_name", ["steps.parquet", "0" * 64 + ".parquet"])
def test_a_renamed_table(filled: Store, new_name: str) -> None:
    path = table_path(filled, "steps", 0)
    path.rename(path.with_name(new_name))
    (problem,) = verify_store(filled.root)
    assert (problem.path, problem.kind) == (str(path.with_name(new_name)), "renamed")
    assert path.name in problem.message


def test_two_files_that_changed_places(filled: Store) -> None:
    first, second = table_path(filled, "steps", 0), table_path(filled, "trials", None)
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    expected = sorted([(relative(filled, p), "renamed") for p in (first, second)])
    assert found(filled) == expected


def test_two_records_that_changed_places_are_told_though_nothing_names_them(
    store: Store, sample: ModuleType
) -> None:
    first, second = (
        store.path("records", sample.put_record(store, experiment=name)) for name in ("a", "b")
    )
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    assert found(store) == sorted([(relative(store, p), "renamed") for p in (first, second)])


def test_a_renamed_record_that_a_verdict_names(filled: Store) -> None:
    path = only(filled, "records")
    path.rename(path.with_name("f" * 64 + ".json"))
    assert found(filled) == [("records/" + "f" * 64 + ".json", "renamed")]


def test_links_and_devices_are_reported_and_not_followed(filled: Store, tmp_path: Path) -> None:
    path = table_path(filled, "steps", 0)
    outside = tmp_path / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    os.mkfifo(filled.root / "plans" / "pipe.json")
    (tmp_path / "verdicts").mkdir()
    (filled.root / "more").symlink_to(tmp_path / "verdicts")
    problems = found(filled)
    assert (relative(filled, path), "unsafe") in problems
    assert ("plans/pipe.json", "unsafe") in problems
    assert ("more", "unsafe") in problems


def test_a_linked_folder_is_not_entered(filled: Store, tmp_path: Path) -> None:
    folder = filled.root / "verdicts"
    folder.rename(tmp_path / "verdicts")
    folder.symlink_to(tmp_path / "verdicts")
    assert ("verdicts", "unsafe") in found(filled)


def test_an_endless_file_is_reported_and_not_read(filled: Store) -> None:
    path = filled.root / "records" / ("0" * 64 + ".json")
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert found(filled) == [(relative(filled, path), "unsafe")]


def test_leftovers_of_dead_writers_are_reported_and_those_of_running_ones_not(
    filled: Store,
) -> None:
    folder = filled.root / "tables"
    name = "0" * 64 + ".parquet"
    dead = f".{name}.4194305.0a0b0c0d.tmp"  # beyond the largest process id
    mine = f".{name}.{os.getpid()}.0a0b0c0d.tmp"
    reused = f".{name}.{os.getpid()}.ffffffff.tmp"  # older than the process of that id
    for leftover in (dead, mine, reused):
        (folder / leftover).write_bytes(b"PAR1 half")
    os.utime(folder / reused, (1, 1))
    assert time.time() > 1_000_000
    expected = {(f"tables/{dead}", "leftover"), (f"tables/{reused}", "leftover")}
    assert set(found(filled)) == expected


def write_record(store: Store, change: Callable[[Any], Any]) -> Path:
    """Replace the one record by a changed one, written past the store's own checks."""
    path = only(store, "records")
    predicate = load_record(path).predicate
    for verdict in (store.root / "verdicts").iterdir():
        verdict.unlink()
    path.unlink()
    data = encode_statement(record_statement(change(predicate)))
    changed = store.path("records", sha256_digest(data))
    changed.write_bytes(data)
    (store.root / "tables" / _differences(store)).unlink()
    return changed


def _differences(store: Store) -> str:
    for path in (store.root / "tables").iterdir():
        if pq.ParquetFile(path).schema_arrow.names[0] == "check":
            return path.name
    raise AssertionError


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: replace(p, plan=replace(p.plan, digest="sha256:" + "0" * 64)), "plan digest"),
        (lambda p: replace(p, plan=replace(p.plan, plan_version="2")), "plan plan_version"),
        (lambda p: replace(p, plan=replace(p.plan, schema="other/1")), "plan schema"),
        (
            lambda p: replace(p, plan=replace(p.plan, model=replace(p.plan.model, revision="2"))),
            "plan model.revision",
        ),
        (
            lambda p: replace(p, tables=(replace(p.tables[0], num_rows=9), *p.tables[1:])),
            "9 rows, the file has 2",
        ),
        (
            lambda p: replace(p, tables=(replace(p.tables[0], size_bytes=9), *p.tables[1:])),
            "9 bytes, the file has",
        ),
    ],
)
def test_a_record_that_contradicts_what_it_names(
    filled: Store, change: Callable[[Any], Any], message: str
) -> None:
    path = write_record(filled, change)
    (problem,) = verify_store(filled.root)
    assert (problem.path, problem.kind) == (str(path), "broken_reference")
    assert message in problem.message


def test_a_record_without_the_manifest_of_its_plan(filled: Store) -> None:
    path = write_record(filled, lambda p: replace(p, manifest_digest=None))
    manifest = only(filled, "manifests")
    assert found(filled) == sorted(
        [(relative(filled, path), "broken_reference"), (relative(filled, manifest), "extra")]
    )


def test_a_verdict_about_another_plan(filled: Store, sample: ModuleType) -> None:
    (record,) = filled.digests("records")
    verdict = sample.put_verdict(filled, record, plan_digest="sha256:" + "0" * 64)
    (problem,) = verify_store(filled.root)
    assert problem.path == str(filled.path("verdicts", verdict))
    assert problem.kind == "broken_reference"


def test_a_verdict_whose_record_is_not_here(filled: Store, sample: ModuleType) -> None:
    (record,) = filled.digests("records")
    statement = filled.read_verdict(sample.put_verdict(filled, record))
    absent = "sha256:" + "1" * 64
    statement["predicate"]["record_digest"] = absent
    statement["subject"][0]["digest"]["sha256"] = "1" * 64
    data = encode_statement(statement)
    filled.path("verdicts", sha256_digest(data)).write_bytes(data)
    assert found(filled) == [(f"records/{'1' * 64}.json", "missing")]


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"[" * 60_000,
        b'{"predicateType":"urn:harness:record:1"}',
        b'{"predicateType":"urn:harness:record:2"}',
        b"\x80\x04.",
        b"",
    ],
)
@pytest.mark.parametrize("kind", ["records", "verdicts"])
def test_statements_that_break_their_schema(filled: Store, kind: Any, data: bytes) -> None:
    path = filled.path(kind, sha256_digest(data))
    path.write_bytes(data)
    assert found(filled) == [(relative(filled, path), "invalid")]


def test_a_verdict_among_the_records(filled: Store) -> None:
    data = only(filled, "verdicts").read_bytes()
    path = filled.path("records", sha256_digest(data))
    path.write_bytes(data)
    assert (relative(filled, path), "invalid") in found(filled)


def test_a_table_with_other_columns_and_a_plan_that_is_not_json(
    store: Store, sample: ModuleType, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    data = (tmp_path / "other.parquet").read_bytes()
    table = sample.WrittenTable(
        name="steps",
        realization=0,
        digest=store.put_table(data),
        num_rows=1,
        size_bytes=len(data),
    )
    plan = store.put_plan(b"not JSON")
    predicate = sample.predicate(store, [table], manifest_digest=None)
    predicate = replace(predicate, plan=replace(predicate.plan, file_digest=plan))
    store.put_record(record_statement(predicate))
    expected = [(store.path("plans", plan), "invalid")]
    expected += [(store.path("tables", table.digest), "invalid")]
    assert found(store) == [(relative(store, path), kind) for path, kind in expected]


def test_many_records_share_tables_and_damage_is_found_among_them(
    store: Store, sample: ModuleType
) -> None:
    for number in range(6):
        record = sample.put_record(store, salt=str(number), experiment=f"e{number}")
        sample.put_verdict(store, record)
    assert verify_store(store.root) == []
    assert len(store.digests("tables")) < 6 * 5
    damaged = store.path("records", store.digests("records")[3])
    flip(damaged)
    assert (str(damaged), "modified") in [(p.path, p.kind) for p in verify_store(store.root)]


def test_no_store_and_an_empty_store(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no evidence store"):
        verify_store(tmp_path / "nothing")
    assert verify_store(tmp_path) == []


def test_a_problem_is_one_line() -> None:
    text = str(Problem(path="a/b", kind="extra", message="does not belong"))
    assert text == "a/b: does not belong [extra]"
    forged = str(Problem(path="a\nb: fine", kind="extra", message="is\x1b[2K not"))
    assert "\n" not in forged
    assert "\x1b" not in forged


def test_plans_are_verified_along(filled: Store, tmp_path: Path) -> None:
    folder = tmp_path / "frozen"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps({"a": 1}))
    (problem,) = verify_store(filled.root, plans=folder)
    assert problem.path == str(folder / "a.json.sha256")

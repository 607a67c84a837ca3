import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import InvalidInputError
from harness.evidence.find import find_records, parse_condition
from harness.evidence.index import index_folder, open_index
from harness.evidence.predicates import SourceIdentity
from harness.evidence.store import Store

Named = dict[str, str]
Finder = Callable[..., list[str | None]]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def find(store: Store, cache: Path) -> Finder:
    """Experiments of what is found, newest first."""

    def search(*conditions: str, limit: int = 100) -> list[str | None]:
        parsed = [parse_condition(text) for text in conditions]
        found = find_records(store, open_index(store, cache), parsed, limit=limit)
        return [row.experiment for row in found.records]

    return search


@pytest.fixture(scope="module")
def written(sample: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Named]:
    """A store of four records of different fields, and their digests by experiment."""
    store, made = Store(tmp_path_factory.mktemp("written")), {}
    for number, name in enumerate(("alpha", "beta", "alphabet", "a.b")):
        source = SourceIdentity(git_commit=f"{number}abc{'0' * 36}", dirty=False)
        made[name] = sample.put_record(
            store, experiment=name, source=source, started_at=f"2026-0{number + 1}-02T00:00:00Z"
        )
    sample.put_verdict(store, made["alpha"])
    sample.put_verdict(store, made["beta"], failed=True)
    sample.put_verdict(store, made["alphabet"])
    sample.put_verdict(store, made["alphabet"], failed=True)
    return store.root, made


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of tests that change nothing."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def records(written: tuple[Path, Named], store: Store) -> Named:
    """Those records, copied into the test's own store."""
    root, made = written
    shutil.copytree(root, store.root, dirs_exist_ok=True)
    return made


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ((), ["a.b", "alphabet", "beta", "alpha"]),
        (("experiment=alpha",), ["alpha"]),
        (("experiment=alpha*",), ["alphabet", "alpha"]),
        (("experiment=a.b",), ["a.b"]),
        (("experiment=a*b*t",), ["alphabet"]),
        (("experiment=(.*)",), []),
        (("verdict=passed",), ["alpha"]),
        (("verdict=failed",), ["beta"]),
        (("verdict=disputed",), ["alphabet"]),
        (("verdict=none",), ["a.b"]),
        (("date=2026-02",), ["beta"]),
        (("date=2026",), ["a.b", "alphabet", "beta", "alpha"]),
        (("commit=1abc",), ["beta"]),
        (("commit=abc",), []),
        (("model=synthetic/tiny",), ["a.b", "alphabet", "beta", "alpha"]),
        (("model=*tiny", "verdict=passed"), ["alpha"]),
        (("verdict=passed", "date=2026-02"), []),
    ],
)
def test_records_are_found_by_what_they_say(
    written: tuple[Path, Named],
    shared_cache: Path,
    conditions: tuple[str, ...],
    expected: list[str],
) -> None:
    store, parsed = Store(written[0]), [parse_condition(text) for text in conditions]
    found = find_records(store, open_index(store, shared_cache), parsed, limit=100)
    assert [row.experiment for row in found.records] == expected
    assert found.num_matching == len(expected)


def test_a_plan_is_found_by_its_first_digits(
    find: Finder, records: Named, sample: ModuleType
) -> None:
    digest = sample.PLAN["digest"]
    assert find(f"plan={digest}") == find(f"plan={digest[7:15]}") == find()
    assert find("plan=ffff") == []


@pytest.mark.parametrize(
    "text", ["", "experiment", "name=x", "experiment=", "verdict=good", "date=" + "2" * 301]
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_condition(text)


def test_the_newest_are_returned_and_all_are_counted(
    store: Store, cache: Path, records: Named
) -> None:
    found = find_records(store, open_index(store, cache), [], limit=2)
    assert [row.experiment for row in found.records] == ["a.b", "alphabet"]
    assert found.num_matching == 4


def test_only_what_changed_is_read(
    store: Store, cache: Path, find: Finder, records: Named, sample: ModuleType
) -> None:
    assert open_index(store, cache).num_read == 8
    assert open_index(store, cache).num_read == 0
    new = sample.put_record(store, experiment="new", started_at="2027-01-01T00:00:00Z")
    assert find() == ["new", "a.b", "alphabet", "beta", "alpha"]
    sample.put_verdict(store, new)
    assert open_index(store, cache).num_read == 1
    assert find("verdict=passed") == ["new", "alpha"]
    store.path("records", new).unlink()
    after = open_index(store, cache)
    assert (after.num_read, after.num_dropped) == (0, 1)
    assert find() == ["a.b", "alphabet", "beta", "alpha"]


def test_the_index_lies_outside_the_store_and_is_the_same_through_a_link(
    store: Store, cache: Path, records: Named, tmp_path: Path
) -> None:
    before = sorted(path for path in store.root.rglob("*"))
    open_index(store, cache)
    assert sorted(path for path in store.root.rglob("*")) == before
    link = tmp_path / "link"
    link.symlink_to(store.root)
    assert open_index(Store(link), cache).num_read == 0
    assert index_folder(store, cache).parent.parent == cache


def forged(path: Path, column: str, value: str) -> None:
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    table = table.set_column(place, column, pa.array([value] * len(table)))
    pq.write_table(table, path, store_schema=False, use_dictionary=False)


def test_a_forged_index_decides_nothing(
    store: Store, cache: Path, find: Finder, records: Named
) -> None:
    open_index(store, cache)
    forged(index_folder(store, cache) / "verdicts.parquet", "status", "passed")
    assert open_index(store, cache).verdicts.column("status").to_pylist() == ["passed"] * 4
    # Beta failed, and alphabet is disputed; both are proposed and neither is returned.
    assert find("verdict=passed") == ["alpha"]
    assert [row.status for row in rows(store, cache)] == [None, "disputed", "failed", "passed"]
    forged(index_folder(store, cache) / "records.parquet", "experiment", "alpha")
    assert find("experiment=alpha") == ["alpha"]


def rows(store: Store, cache: Path) -> tuple[object, ...]:
    return find_records(store, open_index(store, cache), [], limit=100).records


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + b"\0" * 64 + b"PAR1", None, "other"])
def test_a_damaged_index_is_made_again(
    store: Store, cache: Path, find: Finder, records: Named, data: bytes | str | None
) -> None:
    open_index(store, cache)
    path = index_folder(store, cache) / "records.parquet"
    whole = path.read_bytes()
    if data == "other":
        pq.write_table(pa.table({"digest": ["x"]}), path)
    else:
        path.write_bytes(data if isinstance(data, bytes) else whole[:-20])
    assert open_index(store, cache).num_read == 4
    assert find("experiment=beta") == ["beta"]
    assert path.read_bytes() == whole


def test_an_index_that_cannot_be_trusted_as_a_file_is_not_read(
    store: Store, cache: Path, find: Finder, records: Named
) -> None:
    open_index(store, cache)
    path = index_folder(store, cache) / "records.parquet"
    path.unlink()
    os.mkfifo(path)
    assert find("experiment=beta") == ["beta"]
    path.unlink()
    path.symlink_to("/dev/zero")
    assert find("experiment=beta") == ["beta"]
    assert not path.is_symlink()


def test_without_a_writable_cache_records_are_found_too(
    store: Store, find: Finder, records: Named, cache: Path
) -> None:
    cache.write_text("a file, where a folder would be made")
    assert find("experiment=beta") == ["beta"]
    assert open_index(store, cache).num_read == 8


def test_a_damaged_record_is_named_and_hides_no_other(
    store: Store, cache: Path, find: Finder, records: Named
) -> None:
    path = store.path("records", records["beta"])
    whole = path.read_bytes()
    path.write_bytes(b"{}")
    first = rows(store, cache)
    assert [row.experiment for row in first] == ["a.b", "alphabet", "alpha", None]
    assert "was changed" in first[-1].problem
    # It might be what is asked for, whatever that is.
    assert find("experiment=alpha") == ["alpha", None]
    path.write_bytes(whole)
    assert find("experiment=alpha") == ["alpha"]
    assert find("experiment=beta") == ["beta"]
    assert not any(open_index(store, cache).records.column("unread").to_pylist())


def test_damage_after_indexing_is_seen_when_the_record_is_shown(
    store: Store, cache: Path, records: Named
) -> None:
    open_index(store, cache)
    store.path("records", records["beta"]).write_bytes(b"{}")
    (bad,) = [row for row in rows(store, cache) if row.problem is not None]
    assert bad.digest == records["beta"]


def test_nothing_that_judges_imports_the_index(repo_root: Path) -> None:
    code = (
        "import sys, harness.reconcile.__main__, harness.evidence.promote\n"
        "import harness.reconcile.verify, harness.evidence.verify\n"
        "assert not {'harness.evidence.index', 'harness.evidence.find'} & set(sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(repo_root)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)

"""Makes the helpers of this folder importable, and a store with one real record to study."""

import shutil
import sys
from pathlib import Path

import pytest

from harness.evidence.predicates import SourceIdentity
from harness.evidence.promote import promote
from harness.evidence.record import load_record
from harness.evidence.store import Store
from harness.laboratory import writing

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def one_record(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the committed record of ``tiny_llama`` alone; it must not be written to."""
    committed, folder = Store(repo_root / "evidence"), tmp_path_factory.mktemp("one") / "evidence"
    records = [load_record(digest, committed) for digest in committed.digests("records")]
    (found,) = [record for record in records if record.predicate.experiment == "tiny_llama"]
    promote(found, Store(folder))
    return folder


@pytest.fixture
def evidence(one_record: Path, tmp_path: Path) -> Store:
    """A store of its own for one test, with that record."""
    folder = tmp_path / "evidence"
    shutil.copytree(one_record, folder)
    return Store(folder)


@pytest.fixture(autouse=True)
def quick_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which source wrote a study is another room's question, and takes a second to answer."""
    monkeypatch.setattr(writing, "source_of", lambda root: SourceIdentity())

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from harness.evidence.store import Store
from harness.evidence.verify import verify_store


@pytest.fixture(scope="session")
def logged_once(tmp_path_factory: pytest.TempPathFactory, sample: ModuleType) -> Path:
    """Four records by two writers, one of them judged, with a log; written once, never changed."""
    store = Store(tmp_path_factory.mktemp("logged") / "store")
    store.start_log()
    sample.put_verdict(store, sample.put_record(store))
    sample.put_record(store, salt="b", experiment="b")
    other = Store(store.root)
    for name in ("c", "d"):
        sample.put_record(other, salt=name, experiment=name)
    assert verify_store(store.root) == []
    return store.root


@pytest.fixture
def logged(logged_once: Path, tmp_store: Path) -> Store:
    """A copy of four records by two writers, one of them judged, with a log."""
    shutil.copytree(logged_once, tmp_store, dirs_exist_ok=True)
    return Store(tmp_store)

import shutil
from pathlib import Path

import pytest

from harness.evidence.store import Store


@pytest.fixture
def evidence(repo_root: Path, tmp_path: Path) -> Store:
    """A copy of the committed evidence, which may be changed."""
    return Store(shutil.copytree(repo_root / "evidence", tmp_path / "evidence"))


@pytest.fixture
def digests(evidence: Store) -> list[str]:
    return evidence.digests("records")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of a store lies in no cache of whoever runs the tests."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "own-cache"))

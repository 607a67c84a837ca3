import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from harness.evidence.store import Store


def _load_sample() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "evidence_sample", Path(__file__).with_name("sample.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def sample() -> ModuleType:
    """Builders of a small, complete record."""
    return _load_sample()


@pytest.fixture
def store(tmp_store: Path) -> Store:
    return Store(tmp_store)

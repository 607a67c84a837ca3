import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="session")
def helper() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of this folder by name, as child processes do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)
        yield importlib.import_module


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: what is visible is tested here, not the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


@pytest.fixture
def run_script(repo_root: Path) -> Callable[..., str]:
    """Runs a script of this folder in a process of its own; returns what it printed."""

    def run(name: str, *arguments: object, before: tuple[str, ...] = ()) -> str:
        script = Path(__file__).with_name(name)
        completed = subprocess.run(
            [*before, sys.executable, str(script), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(repo_root)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    return run

"""Fixtures and options that every room's tests share."""

import functools
import importlib
from collections.abc import Generator
from pathlib import Path

import pytest

REPO_ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="fail tests marked gpu where they would be skipped",
    )


@functools.cache
def missing_gpu() -> str | None:
    """Why no CUDA GPU can be used here, or ``None`` when one can."""
    torch = importlib.import_module("torch")
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "no CUDA GPU is visible to torch"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and (reason := missing_gpu()) is not None:
        pytest.skip(f"needs a CUDA GPU: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    wanted = item.config.getoption("--require-gpu") and item.get_closest_marker("gpu") is not None
    if wanted and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"--require-gpu: {reason}"
    return report


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The project's root folder."""
    return REPO_ROOT


@pytest.fixture(scope="session")
def shared_r1() -> Path:
    """Folder of the published plan and result, kept beside the project's folder."""
    folder = REPO_ROOT.parent / "shared" / "data" / "r1"
    if not folder.is_dir():
        pytest.skip("the published R1 plan and result are not beside the project's folder")
    return folder


@pytest.fixture
def tmp_store(tmp_path: Path) -> Path:
    """An empty folder for a store of evidence."""
    folder = tmp_path / "store"
    folder.mkdir()
    return folder

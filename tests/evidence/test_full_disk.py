"""A disk that is full at any moment of an operation, and a file that may not grow."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Script = Callable[..., str]
ALONE = ("unshare", "--map-root-user", "--mount")
"""Runs a command as one that may mount, where only it sees what it mounts."""


@pytest.fixture(scope="session")
def mountable(tmp_path_factory: pytest.TempPathFactory) -> None:
    if shutil.which(ALONE[0]) is None:
        pytest.skip("there is no unshare here")
    folder = tmp_path_factory.mktemp("mount")
    tried = subprocess.run(
        [*ALONE, "mount", "-t", "tmpfs", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {tried.stderr.strip()}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["manifest", "logged", "promote", "sign", "merge", "update"])
def test_a_full_disk_is_one_error_that_harms_nothing(
    tmp_path: Path, mountable: None, run_script: Script, name: str
) -> None:
    assert int(run_script("full_disk.py", tmp_path, name, "disk", before=ALONE)) >= 1


@pytest.mark.parametrize(
    "name", ["sign", *(pytest.param(n, marks=pytest.mark.slow) for n in ("logged", "merge"))]
)
def test_a_file_that_may_not_grow_is_one_error_that_harms_nothing(
    fast_folder: Path, run_script: Script, name: str
) -> None:
    assert int(run_script("full_disk.py", fast_folder, name, "file")) >= 10

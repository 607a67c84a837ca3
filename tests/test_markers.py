import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = """
import pytest

@pytest.mark.gpu
def test_on_a_gpu():
    pass

def test_without_one():
    pass

def test_skips_for_another_reason():
    pytest.skip("something else")
"""


def outcome(folder: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *options, "."]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return result.returncode, result.stdout


@pytest.fixture
def sample(repo_root: Path, tmp_path: Path) -> Path:
    """A folder with this suite's shared options and three tests."""
    shutil.copy(repo_root / "tests" / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: needs one\n")
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    return tmp_path


def test_a_gpu_test_is_skipped_with_its_reason(sample: Path) -> None:
    code, text = outcome(sample)
    assert code == 0
    assert "1 passed, 2 skipped" in text
    assert "needs a CUDA GPU: " in text


def test_require_gpu_turns_those_skips_into_failures(sample: Path) -> None:
    code, text = outcome(sample, "--require-gpu")
    assert code == 1
    assert "1 passed, 1 skipped, 1 error" in text
    assert "--require-gpu: Skipped: needs a CUDA GPU: " in text

"""The rooms without torch run on every supported Python, not only on the tests' own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NEEDED = (
    *("rfc8785", "jsonschema", "attrs", "referencing", "rpds-py", "jsonschema-specifications"),
    *("typing_extensions", "pyarrow", "numpy", "rich", "markdown-it-py", "mdurl", "Pygments"),
    *("PyYAML", "pytest", "iniconfig", "packaging", "pluggy", "hypothesis", "sortedcontainers"),
)
"""What plan, evidence and reconcile and their tests import."""


def interpreter(version: str) -> str | None:
    """An interpreter of that version on this machine, if there is one that runs."""
    homes = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python"), reverse=True)
    for candidate in (shutil.which(f"python{version}"), *map(str, homes)):
        if candidate is None:
            continue
        asked = subprocess.run(
            [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.stdout.strip() == version:
            return candidate
    return None


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_rooms_without_torch(version: str, tmp_path: Path, repo_root: Path) -> None:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"these tests themselves run on Python {version}")
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    subprocess.run([python, "-m", "venv", str(tmp_path / "venv")], check=True)
    own = str(tmp_path / "venv" / "bin" / "python")
    pins = [
        line
        for line in (repo_root / "requirements" / "dev.lock").read_text().splitlines()
        if line.partition("==")[0].lower().replace("_", "-")
        in {name.lower().replace("_", "-") for name in NEEDED}
    ]
    assert len(pins) == len(NEEDED)
    subprocess.run(
        [own, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", *pins],
        check=True,
    )
    result = subprocess.run(
        [
            *(own, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"),
            *("tests/plan", "tests/reconcile"),
        ],
        cwd=repo_root,
        env={**os.environ, "PYTHONPATH": str(repo_root), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:]

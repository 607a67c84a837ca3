import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("harness", "kernels")


@pytest.fixture(scope="module")
def project(repo_root: Path) -> dict[str, Any]:
    return tomllib.loads((repo_root / "pyproject.toml").read_text())


def pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    found = {}
    for line in lines:
        match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.]*)", line)
        assert match is not None, f"not one exact public version: {line!r}"
        found[re.sub(r"[-_.]+", "-", match.group(1)).lower()] = match.group(2)
    assert len(found) == len(lines)
    return found


def test_the_development_lock_holds_the_runtime_lock(repo_root: Path) -> None:
    runtime = pins(repo_root / "requirements" / "runtime.lock")
    dev = pins(repo_root / "requirements" / "dev.lock")
    assert runtime.items() <= dev.items()
    assert runtime["torch"] == "2.13.0"
    assert runtime.keys().isdisjoint({"transformers", "triton", "pytest"})


def test_the_locks_pin_every_declared_dependency(repo_root: Path, project: dict[str, Any]) -> None:
    def names(requirements: list[str]) -> set[str]:
        found = [re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0] for text in requirements]
        return {re.sub(r"[-_.]+", "-", name).lower() for name in found}

    declared = project["project"]
    assert names(declared["dependencies"]) <= pins(repo_root / "requirements/runtime.lock").keys()
    extra = declared["optional-dependencies"]["dev"]
    assert names(extra) <= pins(repo_root / "requirements/dev.lock").keys()


def test_every_package_is_listed(repo_root: Path, project: dict[str, Any]) -> None:
    found = {
        path.parent.relative_to(repo_root).as_posix().replace("/", ".")
        for package in PACKAGES
        for path in (repo_root / package).rglob("__init__.py")
    }
    assert found == set(project["tool"]["setuptools"]["packages"])


def copy_of_the_source(repo_root: Path, target: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(
            repo_root / package,
            target / package,
            ignore=shutil.ignore_patterns("__pycache__", "*.so"),
        )
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(repo_root / name, target / name)
    return target


@pytest.mark.slow
def test_a_wheel_holds_every_source_file(repo_root: Path, tmp_path: Path) -> None:
    source = copy_of_the_source(repo_root, tmp_path / "source")
    expected = {
        path.relative_to(source).as_posix()
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.is_file()
    }
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(tmp_path / "wheels"), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    libraries = {name for name in packed if name.endswith(".so")}
    assert packed - libraries == expected
    assert len(libraries) == (shutil.which("c++") is not None)


@pytest.mark.slow
def test_without_a_compiler_the_package_is_built_without_the_library(
    repo_root: Path, tmp_path: Path
) -> None:
    source = copy_of_the_source(repo_root, tmp_path / "source")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    environment = {**os.environ, "PATH": str(tmp_path), "CXX": "no-compiler", "CC": "no-compiler"}
    done = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "native-cpu/1 is not built" in done.stdout + done.stderr
    assert not list(source.rglob("*.so"))


VIOLATIONS = {
    "harness/plan/planted.py": "import torch",
    "harness/evidence/planted.py": "from harness.plan import records",
    "harness/plan/rules/planted.py": "def f():\n    import harness.checkpoint.census",
    "harness/reconcile/planted.py": "import harness.realize.realizer",
    "harness/checkpoint/planted.py": "def f():\n    import torch",
    "harness/adapters/llama/layout.py": "import torch",
    "harness/run/supervisor.py": "from harness.realize import realizer",
    "harness/measure/planted.py": "import hydra",
    "harness/run/planted.py": "import harness.experiment",
    "harness/realize/planted.py": "import kernels.linear",
    "harness/adapters/planted.py": "import transformers",
    "kernels/planted.py": "import harness.errors",
}
BROKEN = (
    "harness.plan.planted -> torch",
    "harness.evidence.planted -> harness.plan.records",
    "harness.plan.rules.planted -> harness.checkpoint.census",
    "harness.reconcile.planted -> harness.realize.realizer",
    "harness.checkpoint.planted -> torch",
    "harness.adapters.llama.layout -> torch",
    "harness.run.supervisor -> harness.realize.realizer",
    "harness.measure.planted -> hydra",
    "harness.run.planted -> harness.experiment",
    "harness.realize.planted -> kernels.linear",
    "harness.adapters.planted -> transformers",
    "kernels.planted -> harness.errors",
)


def lint_imports(source: Path) -> tuple[int, str]:
    script = "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c())"
    result = subprocess.run(
        [sys.executable, "-c", script, "--no-cache"],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return result.returncode, result.stdout


@pytest.mark.slow
@pytest.mark.long
def test_the_import_contracts_hold(repo_root: Path, tmp_path: Path) -> None:
    code, text = lint_imports(copy_of_the_source(repo_root, tmp_path / "source"))
    assert code == 0, text


@pytest.mark.slow
def test_the_import_contracts_bite(repo_root: Path, tmp_path: Path) -> None:
    source = copy_of_the_source(repo_root, tmp_path / "source")
    for path, line in VIOLATIONS.items():
        planted = source / path
        before = planted.read_text() if planted.exists() else '"""Planted."""\n'
        planted.write_text(f"{before}\n{line}\n")
    code, text = lint_imports(source)
    assert code == 1, text
    assert [chain for chain in BROKEN if chain not in text] == []


@pytest.mark.slow
def test_a_new_room_must_be_given_a_floor(repo_root: Path, tmp_path: Path) -> None:
    source = copy_of_the_source(repo_root, tmp_path / "source")
    (source / "harness" / "newroom").mkdir()
    (source / "harness" / "newroom" / "__init__.py").write_text('"""Planted."""\n')
    code, text = lint_imports(source)
    assert code == 1
    assert "newroom" in text

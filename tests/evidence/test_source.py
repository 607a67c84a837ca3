import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from harness.evidence.source import installed_root, package_digest, source_identity


def git(root: Path, *arguments: str) -> str:
    names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_CONFIG_GLOBAL": os.devnull}
    names |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a"}
    command = ["git", "-c", "init.defaultBranch=main", *arguments]
    completed = subprocess.run(
        command, cwd=root, env={**os.environ, **names}, capture_output=True, text=True, check=True
    )
    return completed.stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name, text in (
        ("harness/__init__.py", "a = 1\n"),
        ("harness/evidence/schema.json", "{}\n"),
        ("kernels/__init__.py", ""),
        ("README.md", "text\n"),
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def test_a_clean_checkout(project: Path) -> None:
    assert source_identity(project) == {
        "git_commit": git(project, "rev-parse", "HEAD"),
        "git_tree": git(project, "rev-parse", "HEAD^{tree}"),
        "dirty": False,
        "diff_digest": None,
        "package_digest": package_digest(project),
    }


def test_every_kind_of_change_gives_another_difference_digest(project: Path) -> None:
    seen = {None}
    changes = [
        lambda: (project / "README.md").write_text("other\n"),
        lambda: (project / "README.md").write_text("another\n"),
        lambda: (project / "new.txt").write_text("1"),
        lambda: (project / "new.txt").write_text("2"),
        lambda: (project / "new.txt").rename(project / "newer.txt"),
        lambda: (project / "README.md").unlink(),
        lambda: (project / "harness" / "__init__.py").chmod(0o755),
        lambda: (project / "bytes.bin").write_bytes(bytes(range(256))),
        lambda: git(project, "add", "bytes.bin"),
    ]
    for change in changes:
        change()
        identity = source_identity(project)
        assert identity["dirty"] is True
        assert identity["git_commit"] == git(project, "rev-parse", "HEAD")
        assert identity["diff_digest"] not in seen
        seen.add(identity["diff_digest"])
    assert source_identity(project)["diff_digest"] in seen


def test_settings_of_the_repository_neither_run_nor_change_anything(project: Path) -> None:
    (project / "README.md").write_text("other\n")
    before = source_identity(project)
    marker = project.parent / "ran"
    program = project.parent / "program.sh"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    git(project, "config", "diff.external", str(program))
    git(project, "config", "core.fsmonitor", str(program))
    git(project, "config", "diff.noprefix", "true")
    git(project, "config", "diff.context", "9")
    assert source_identity(project) == before
    assert not marker.exists()


def test_an_untracked_folder_inside_a_repository_has_no_commit(project: Path) -> None:
    (project / ".gitignore").write_text("env/\n")
    installed = project / "env"
    (installed / "harness").mkdir(parents=True)
    (installed / "harness" / "__init__.py").write_text("a = 2\n")
    identity = source_identity(installed)
    assert identity.pop("package_digest") == package_digest(installed)
    assert set(identity.values()) == {None}


def test_without_git_everything_but_the_package_is_unknown(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    identity = source_identity(project)
    assert identity.pop("package_digest") == package_digest(project)
    assert set(identity.values()) == {None}


def test_the_package_digest_is_that_of_sha256sum_lines(project: Path) -> None:
    cache = project / "harness" / "__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"x")
    (project / "harness" / "native.so").write_bytes(b"x")
    names = ["harness/__init__.py", "harness/evidence/schema.json", "kernels/__init__.py"]
    lines = "".join(
        f"{hashlib.sha256((project / name).read_bytes()).hexdigest()}  {name}\n" for name in names
    )
    assert package_digest(project) == "sha256:" + hashlib.sha256(lines.encode()).hexdigest()
    (project / "kernels" / "__init__.py").write_text("# changed")
    assert package_digest(project) != "sha256:" + hashlib.sha256(lines.encode()).hexdigest()
    assert package_digest(project / "nothing") is None


def test_the_running_package_has_a_digest(repo_root: Path) -> None:
    assert installed_root() == repo_root
    assert package_digest() == package_digest(repo_root)

"""Peers' environments: made once, from what they say; one that cannot be made is a reason."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environments
from benchmarks.environments import Recipe, Unavailable, python_of


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands for the installer; what it was asked to install."""
    calls: list[str] = []

    def install(python: Path, recipe: Recipe, log: Path) -> None:
        calls.append(" ".join(recipe.requirements))
        if "broken" in recipe.requirements[0]:
            log.write_text("WARNING: slow\nERROR: no matching distribution\n")
            raise subprocess.CalledProcessError(1, ["pip"])

    def create(folder: Path, **rest: Any) -> None:
        folder.mkdir(parents=True)

    monkeypatch.setattr(environments, "_install", install)
    monkeypatch.setattr(environments.venv, "create", create)
    monkeypatch.setitem(environments.RECIPES, "peer", Recipe(requirements=("one==1",)))
    monkeypatch.setitem(environments.RECIPES, "bad", Recipe(requirements=("broken==1",)))
    return calls


def make(name: str, root: Path, *, retry: bool = False) -> Path:
    return python_of(name, root, retry=retry, say=lambda text: None)


def test_an_environment_is_made_once(tmp_path: Path, made: list[str]) -> None:
    assert make("peer", tmp_path) == make("peer", tmp_path) == tmp_path / "peer/bin/python"
    assert made == ["one==1"]


def test_another_recipe_makes_it_anew(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make("peer", tmp_path)
    (tmp_path / "peer" / "left").write_text("of the older one")
    monkeypatch.setitem(environments.RECIPES, "peer", Recipe(requirements=("one==2",)))
    make("peer", tmp_path)
    assert made == ["one==1", "one==2"]
    assert not (tmp_path / "peer" / "left").exists()


def test_one_that_was_interrupted_is_made_again(tmp_path: Path, made: list[str]) -> None:
    make("peer", tmp_path)
    (tmp_path / "peer" / ".stamp").unlink()
    make("peer", tmp_path)
    assert len(made) == 2


def test_a_failure_is_a_reason_that_is_kept_until_it_is_tried_again(
    tmp_path: Path, made: list[str]
) -> None:
    for retry, calls in ((False, 1), (False, 1), (True, 2)):
        with pytest.raises(Unavailable, match="cannot be made: ERROR: no matching distribution"):
            make("bad", tmp_path, retry=retry)
        assert len(made) == calls

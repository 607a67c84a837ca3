"""The cache of fixtures: names bind what can change the bits; only intact folders are used."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.plan.load import LoadedPlan
from harness.run import fixture


@pytest.fixture
def cached(passed: Any, cache: Path, tmp_path: Path) -> Path:
    """A copy of the one cached fixture that the faithful run made."""
    assert passed.code == 0
    made = next(path for path in (cache / "fixtures").iterdir() if fixture.is_intact(path))
    return Path(shutil.copytree(made, tmp_path / "cached"))


def test_a_cached_fixture_needs_no_torch() -> None:
    code = "import sys, harness.run.fixture; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_only_the_sealed_bytes_are_intact(cached: Path) -> None:
    assert fixture.is_intact(cached)
    assert not fixture.is_intact(cached / "nowhere")
    for name in fixture.FILES:
        path = cached / name
        before = path.read_bytes()
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        assert not fixture.is_intact(cached)
        path.unlink()
        assert not fixture.is_intact(cached)
        path.write_bytes(before)
        assert fixture.is_intact(cached)
    seal = json.loads((cached / fixture.SEAL_FILE).read_text())
    for damaged in ({}, {**seal, "other": "x"}, [], {**seal, fixture.FILES[0]: None}):
        (cached / fixture.SEAL_FILE).write_text(json.dumps(damaged))
        assert not fixture.is_intact(cached)


def test_the_name_binds_recipe_machine_and_source(
    small_plan: LoadedPlan, freeze_plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fixture.cache_name(small_plan, {})
    assert fixture.cache_name(small_plan, {}) == name
    assert fixture.cache_name(freeze_plan(workload__decode_steps=2), {}) != name
    # How often it is repeated changes nothing that is referred to.
    assert fixture.cache_name(freeze_plan(workload__repetitions=3), {}) == name
    others = [("ATEN_CPU_CAPABILITY", None), ("installed_version", "9"), ("package_digest", "x")]
    for what, value in others:
        with monkeypatch.context() as patch:
            if value is None:
                patch.setenv(what, "default")
            else:
                patch.setattr(fixture, what, lambda *_, value=value: value)
            assert fixture.cache_name(small_plan, {}) != name


def test_the_name_binds_the_form_of_each_copy(small_plan: LoadedPlan) -> None:
    name = fixture.cache_name(small_plan, {})
    for index, intent in enumerate(small_plan.plan.materializations):
        listed = list(small_plan.plan.materializations)
        listed[index] = replace(intent, representation="another")
        plan = replace(small_plan, plan=replace(small_plan.plan, materializations=tuple(listed)))
        # Staging is how a copy comes about, not what it is.
        assert (fixture.cache_name(plan, {}) != name) == (intent.persistence == "persistent")


def test_what_lies_in_the_way_is_replaced(
    small_plan: LoadedPlan, cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Maker:
        @staticmethod
        def make_reference(plan: object, job: object, folder: Path) -> None:
            for name in fixture.FILES:
                shutil.copyfile(cached / name, folder / name)

    monkeypatch.setattr(fixture.importlib, "import_module", lambda name: Maker)
    target = tmp_path / "fixtures" / "name"
    for put in (
        lambda: None,
        lambda: target.write_text("a file"),
        lambda: target.symlink_to(tmp_path),
        lambda: (target.mkdir(), (target / "junk").write_text("x")),
    ):
        target.parent.mkdir(exist_ok=True)
        put()
        fixture.publish(small_plan, tmp_path, target)
        assert fixture.is_intact(target)
        assert list(target.parent.iterdir()) == [target]
        shutil.rmtree(target)


def test_another_makers_finished_folder_is_left_alone(
    small_plan: LoadedPlan, cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        @staticmethod
        def make_reference(plan: object, job: object, folder: Path) -> None:
            for name in fixture.FILES:
                shutil.copyfile(cached / name, folder / name)

    monkeypatch.setattr(fixture.importlib, "import_module", lambda name: Slow)
    inode = cached.stat().st_ino
    fixture.publish(small_plan, tmp_path, cached)
    assert cached.stat().st_ino == inode

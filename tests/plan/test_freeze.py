"""Freezing: complete or invisible, and never changed afterwards."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from plan_sample import Document, corrupted, file_of, manifest, native_document

from harness.errors import InvalidInputError, PlanError
from harness.plan.check import check_file
from harness.plan.freeze import freeze
from harness.plan.load import load_plan, sidecar_bytes, sidecar_path
from harness.plan.manifest import manifest_path
from harness.plan.records import ManifestReference


class Killed(BaseException):
    """What a killed process would look like from inside."""


def files(path: Path, document: Document) -> dict[Path, bytes]:
    """Every file of a frozen plan with its bytes, in the order of writing."""
    data = file_of(document)
    reference = ManifestReference(**document["checkpoint"]["manifest"])
    return {
        manifest_path(path.parent, reference): manifest(),
        path: data,
        sidecar_path(path): sidecar_bytes(path, data),
    }


def visible(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and path.suffix != ".tmp"}


def test_a_frozen_plan_is_three_files(tmp_path: Path) -> None:
    path = tmp_path / "plans" / "sample.json"
    without = native_document()
    del without["digest"]
    frozen = freeze(without, path, manifest=manifest())
    expected = files(path, native_document())
    assert {file: file.read_bytes() for file in visible(tmp_path)} == expected
    assert frozen.path == path
    assert load_plan(path) == frozen
    assert check_file(path)[1] == []


def test_a_wrong_digest_is_replaced_not_believed(tmp_path: Path) -> None:
    document = {**native_document(), "digest": "sha256:" + "1" * 64}
    frozen = freeze(document, tmp_path / "sample.json", manifest=manifest())
    assert frozen.plan.digest == native_document()["digest"]


def test_freezing_the_same_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sample.json"
    freeze(native_document(), path, manifest=manifest())
    before = {file: file.stat().st_ino for file in visible(tmp_path)}
    freeze(native_document(), path, manifest=manifest())
    assert {file: file.stat().st_ino for file in visible(tmp_path)} == before


def test_another_plan_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "sample.json"
    freeze(native_document(), path, manifest=manifest())
    other = corrupted(lambda d: d.update(plan_version="sample-2"))
    with pytest.raises(PlanError) as caught:
        freeze(other, path, manifest=manifest())
    assert native_document()["digest"] in str(caught.value)
    assert other["digest"] in str(caught.value)
    assert {f: f.read_bytes() for f in visible(tmp_path)} == files(path, native_document())


@pytest.mark.parametrize("index", [0, 1, 2])
def test_another_file_in_the_way_is_left_and_nothing_is_written(tmp_path: Path, index: int) -> None:
    path = tmp_path / "sample.json"
    blocked = list(files(path, native_document()))[index]
    blocked.parent.mkdir(exist_ok=True)
    blocked.write_bytes(b"mine")
    with pytest.raises(PlanError, match="frozen files never change"):
        freeze(native_document(), path, manifest=manifest())
    assert visible(tmp_path) == {blocked}
    assert blocked.read_bytes() == b"mine"


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "sample.json"
    path.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(PlanError, match="symbolic link"):
        freeze(native_document(), path, manifest=manifest())
    assert not (tmp_path / "elsewhere.json").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["materializations"][0].update(role="x"), "role"),
        (lambda d: d["workload"].update(max_positions=6), "positions"),
        (lambda d: d["materializations"][1].update(expected_bytes=141), "expected_bytes"),
        (lambda d: d["checkpoint"]["manifest"].update(digest="sha256:" + "0" * 64), "manifest"),
    ],
)
def test_a_plan_that_breaks_rules_is_not_written(
    tmp_path: Path, change: Callable[[Document], Any], says: str
) -> None:
    with pytest.raises(PlanError, match=says):
        freeze(corrupted(change), tmp_path / "sample.json", manifest=manifest())
    assert visible(tmp_path) == set()


def test_plan_and_manifest_go_together(tmp_path: Path, published_bytes: bytes) -> None:
    path = tmp_path / "sample.json"
    with pytest.raises(PlanError, match="together"):
        freeze(native_document(), path, manifest=None)
    published = json.loads(published_bytes)
    with pytest.raises(PlanError, match="together"):
        freeze(published, path, manifest=manifest())
    assert visible(tmp_path) == set()
    freeze(published, path, manifest=None)
    assert path.read_bytes() == published_bytes


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """Make the ``step``-th link or fsync (before or after its effect) the last thing that runs."""
    counted = [0]

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **named: Any) -> Any:
            counted[0] += 1
            if counted[0] == step:
                raise Killed
            result = real(*arguments, **named)
            counted[0] += 1
            if counted[0] == step:
                raise Killed
            return result

        return wrapper

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", wrap(os.link))
        patch.setattr(os, "fsync", wrap(os.fsync))
        yield


def test_a_freeze_killed_at_any_step_is_whole_or_absent_and_can_be_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_killed = 0
    for step in range(1, 100):
        folder = tmp_path / str(step)
        path = folder / "sample.json"
        whole = files(path, native_document())
        try:
            with killed_at(monkeypatch, step):
                freeze(native_document(), path, manifest=manifest())
        except Killed:
            num_killed += 1
        else:
            break
        order = list(whole)
        shown = visible(folder)
        # Always a prefix of the order of writing, each file whole.
        assert shown == set(order[: len(shown)])
        assert all(file.read_bytes() == whole[file] for file in shown)
        if path in shown:
            assert load_plan(path).plan.digest == native_document()["digest"]
        else:
            with pytest.raises(InvalidInputError):
                load_plan(path)
        freeze(native_document(), path, manifest=manifest())
        assert {file: file.read_bytes() for file in visible(folder)} == whole
    # Three files, each with one link and two fsyncs, and an fsync for each of two new folders;
    # before and after each.
    assert num_killed == 22

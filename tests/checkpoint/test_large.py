"""Asking before a large checkpoint is made, and where there is no space for it."""

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoint import large
from harness.checkpoint.large import LargeCheckpointError
from harness.checkpoint.sources import fetch
from harness.cli import main
from harness.cli.parser import parse_arguments
from harness.cli.project import run_request
from harness.errors import ExitCode, InvalidInputError, NotEvaluableError
from harness.experiment import compose_experiment
from harness.plan.layout import SyntheticTensor

SOURCE: dict[str, Any] = {
    "kind": "synthetic",
    "generator": "shake256-quantized/1",
    "seed": 5,
    "family": "some",
    "config": {"vocab_size": 8},
}
Usage = namedtuple("Usage", ["total", "used", "free"])


def tensors(config: Any, layers: tuple[int, int] | None) -> dict[str, SyntheticTensor]:
    del config
    first, end = layers or (0, 4)
    return {f"layers.{i}": SyntheticTensor(shape=(100,), dtype="uint8") for i in range(first, end)}


def test_a_large_checkpoint_is_made_with_consent_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "MAX_UNASKED_BYTES", 399)
    cache = tmp_path / "deep" / "cache"
    with pytest.raises(LargeCheckpointError) as caught:
        fetch(SOURCE, cache, tensors=tensors)
    assert caught.value.exit_code == ExitCode.NOT_EVALUABLE
    message = str(caught.value)
    for part in ("400 bytes", "allow_large=true", "free", str(cache)):
        assert part in message
    assert not (tmp_path / "deep").exists()
    # Fewer layers are no large checkpoint, and another folder.
    part = fetch({**SOURCE, "layers": [1, 3]}, cache, tensors=tensors)
    whole = fetch(SOURCE, cache, tensors=tensors, allow_large=True)
    assert part != whole
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (part, whole)]
    assert sizes[0] < sizes[1]
    # What is there was agreed to.
    assert fetch(SOURCE, cache, tensors=tensors) == whole


@pytest.mark.parametrize("allow_large", [True, False])
def test_no_space_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allow_large: bool
) -> None:
    free = 400 + (64 << 20)
    usage = Usage(1 << 40, (1 << 40) - free, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free - 1))
    with pytest.raises(NotEvaluableError, match="no space for the checkpoint") as caught:
        fetch(SOURCE, tmp_path / "cache", tensors=tensors, allow_large=allow_large)
    assert f"{free:,} bytes free" in str(caught.value)
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    fetch(SOURCE, tmp_path / "cache", tensors=tensors, allow_large=allow_large)


@pytest.mark.parametrize("layers", [[1], [0, 1, 2], ["0", 1], [True, 2], [0, 1.5]])
def test_layers_are_two_numbers(tmp_path: Path, layers: list[Any]) -> None:
    with pytest.raises(InvalidInputError, match="layers is not"):
        fetch({**SOURCE, "layers": layers}, tmp_path, tensors=tensors)


def test_a_generator_is_not_asked_for_what_it_does_not_make(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="does not make this model") as caught:
        fetch({**SOURCE, "generator": "shake256/1"}, tmp_path, tensors=tensors)
    assert "shake256-quantized/1" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_bounds_make_another_folder(tmp_path: Path) -> None:
    def bounded(high: float) -> Any:
        return lambda config, layers: {"a": SyntheticTensor(shape=(4,), bounds=(0.0, high))}

    folders = {fetch(SOURCE, tmp_path, tensors=bounded(high)) for high in (1.0, 2.0)}
    assert len(folders) == 2


def test_the_command_line_asks_and_exits_3(
    tmp_path: Path, repo_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["checkpoint", "fetch", "experiment=r1_block_a_synthetic", f"cache={tmp_path / 'c'}"]
    config = ["--config-dir", str(repo_root / "experiments")]
    assert main([*command, *config]) == ExitCode.NOT_EVALUABLE
    shown = capsys.readouterr()
    assert "10,295,018,032 bytes" in shown.err
    assert "allow_large=true" in shown.err
    assert not (tmp_path / "c").exists()


def test_consent_reaches_a_run_and_no_plan(repo_root: Path) -> None:
    for override, expected in [("allow_large=true", True), ("allow_large=false", False)]:
        options = parse_arguments(["run", "experiment=tiny_llama", override])
        config = compose_experiment(options.overrides, config_dir=repo_root / "experiments")
        config.require_frozen()
        assert run_request(config, options).allow_large is expected

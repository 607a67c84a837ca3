from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from harness.checkpoint.sources import fetch
from harness.errors import CheckpointError, ExitCode, InvalidInputError, NotEvaluableError

REVISION = "0123456789abcdef0123456789abcdef01234567"
SOURCE = {"kind": "hub", "repository": "owner/model", "revision": REVISION}
Snapshot = Callable[..., str]


@pytest.fixture
def hub(
    monkeypatch: pytest.MonkeyPatch, write_tensors: Any, tmp_path: Path
) -> list[dict[str, Any]]:
    """Replaces the hub's download; returns the list of calls it gets."""
    write_tensors({"a": 4}, name="remote/model.safetensors")
    weights = (tmp_path / "remote" / "model.safetensors").read_bytes()
    calls: list[dict[str, Any]] = []

    def snapshot_download(**arguments: Any) -> str:
        calls.append(arguments)
        folder = Path(arguments["local_dir"])
        (folder / ".cache" / "huggingface").mkdir(parents=True)
        (folder / ".cache" / "huggingface" / "x.metadata").write_text("")
        (folder / "config.json").write_text("{}")
        (folder / "tokenizer.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(weights)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def test_downloads_one_commit_into_a_plain_folder(tmp_path: Path, hub: list[Any]) -> None:
    folder = fetch(SOURCE, tmp_path / "cache")
    assert fetch(SOURCE, tmp_path / "cache") == folder
    assert len(hub) == 1
    assert (hub[0]["repo_id"], hub[0]["revision"]) == ("owner/model", REVISION)
    assert "*.safetensors" in hub[0]["allow_patterns"]
    assert "cache_dir" not in hub[0]
    assert {path.name for path in folder.iterdir()} == {
        ".complete.json",
        "config.json",
        "tokenizer.json",
        "model.safetensors",
    }


def test_a_list_of_allowed_files_is_passed_on(tmp_path: Path, hub: list[Any]) -> None:
    source = {**SOURCE, "allow": ["*.safetensors", "config.json", "tokenizer.json"]}
    fetch(source, tmp_path / "cache")
    assert hub[0]["allow_patterns"] == source["allow"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"revision": "main"}, "not a full commit hash"),
        ({"revision": REVISION[:12]}, "not a full commit hash"),
        ({"revision": REVISION + "\n"}, "not a full commit hash"),
        ({"repository": "../x"}, "not owner/name"),
        ({"repository": "https://host/x"}, "not owner/name"),
        ({"repository": "a/b/c"}, "not owner/name"),
        ({"allow": ["*"]}, "allow pattern '*'"),
        ({"allow": ["*.bin"]}, "allow pattern '*.bin'"),
        ({"allow": ["../*.json"]}, "allow pattern"),
        ({"allow": ["*.py", "*.json"]}, "allow pattern '*.py'"),
        ({"allow": [1]}, "not a list of strings"),
        ({"token": "x"}, "token is not a field"),
    ],
)
def test_sources_that_are_refused(
    tmp_path: Path, hub: list[Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        fetch({**SOURCE, **change}, tmp_path / "cache")
    assert message in str(caught.value)
    assert hub == []
    assert not (tmp_path / "cache").exists()


class TransportError(Exception):
    """What an HTTP client of the hub's choice raises: of no class known here."""


def response(status: int) -> Any:
    # The hub's errors only look at these two.
    return SimpleNamespace(status_code=status, headers={}, request=None)


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (TransportError("no route"), NotEvaluableError, ExitCode.NOT_EVALUABLE),
        (OSError("name resolution"), NotEvaluableError, ExitCode.NOT_EVALUABLE),
        (errors.LocalEntryNotFoundError("offline"), NotEvaluableError, ExitCode.NOT_EVALUABLE),
        (
            errors.GatedRepoError("terms", response=response(403)),
            NotEvaluableError,
            ExitCode.NOT_EVALUABLE,
        ),
        (
            errors.RepositoryNotFoundError("none", response=response(404)),
            CheckpointError,
            ExitCode.INVALID_INPUT,
        ),
        (
            errors.RevisionNotFoundError("none", response=response(404)),
            CheckpointError,
            ExitCode.INVALID_INPUT,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_hub_that_does_not_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kind: type[Exception],
    code: ExitCode,
) -> None:
    def snapshot_download(**arguments: Any) -> str:
        (Path(arguments["local_dir"]) / "config.json").write_text("{}")
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(kind) as caught:
        fetch(SOURCE, tmp_path / "cache")
    assert "owner/model" in str(caught.value)
    assert REVISION in str(caught.value)
    assert caught.value.exit_code == code  # type: ignore[attr-defined]
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.name[0] != "."] == []


@pytest.mark.parametrize("name", ["model.bin", "modeling.py", "sub/model.safetensors", "link.json"])
def test_files_that_were_not_asked_for(
    tmp_path: Path, hub: list[Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    good = huggingface_hub.snapshot_download

    def snapshot_download(**arguments: Any) -> str:
        path = Path(arguments["local_dir"]) / name
        path.parent.mkdir(exist_ok=True)
        if name == "link.json":
            path.symlink_to("/etc/hostname")
        else:
            path.write_bytes(b"")
        return str(good(**arguments))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match="not asked for") as caught:
        fetch(SOURCE, tmp_path / "cache")
    assert name.split("/")[0] in str(caught.value)


def test_a_download_without_weights(
    tmp_path: Path, hub: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot_download(**arguments: Any) -> str:
        (Path(arguments["local_dir"]) / "config.json").write_text("{}")
        return ""

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match="no safetensors files"):
        fetch(SOURCE, tmp_path / "cache")

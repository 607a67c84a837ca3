"""Checkpoint folders: headers are validated before anything is read."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


def packed(header: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(start: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


GOOD = packed(json.dumps({"a": entry(0, 8, [2]), "b": entry(8, 16, [2])}), bytes(16))
BAD: dict[str, bytes] = {
    "empty": b"",
    "seven bytes": b"1234567",
    "header longer than the file": packed("{}", length=1000),
    "header beyond the cap": packed("{}", length=2**40),
    "header of 2**64 - 1": packed("{}", length=2**64 - 1),
    "not JSON": packed("not json"),
    "a list": packed("[]"),
    "duplicate key": packed(
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        '"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        bytes(8),
    ),
    "beyond the file": packed(json.dumps({"a": entry(0, 80, [20])}), bytes(8)),
    "overlap": packed(json.dumps({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}), bytes(12)),
    "hole": packed(json.dumps({"a": entry(0, 8, [2]), "b": entry(12, 20, [2])}), bytes(20)),
    "hole at the start": packed(json.dumps({"a": entry(4, 12, [2])}), bytes(12)),
    "hole at the end": packed(json.dumps({"a": entry(0, 8, [2])}), bytes(12)),
    "wrong size": packed(json.dumps({"a": entry(0, 8, [3])}), bytes(8)),
    "negative shape": packed(json.dumps({"a": entry(0, 8, [-2])}), bytes(8)),
    "backwards": packed(json.dumps({"a": entry(8, 0, [2])}), bytes(8)),
    "unknown dtype": packed(json.dumps({"a": entry(0, 8, [2], "Q9")}), bytes(8)),
    "truncated": GOOD[:-4],
    "git-lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n"
    ),
    "HTML page": b"<!DOCTYPE html><html><body>404</body></html>\n",
}


def folder_with(tmp_path: Path, data: bytes) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(data)
    return folder


def test_a_sound_file_is_listed(command: Command, tmp_path: Path) -> None:
    outcome = command("checkpoint", "census", "--json", folder_with(tmp_path, GOOD))
    assert outcome.code == 0, outcome
    assert "a" in outcome.out
    assert isinstance(outcome.json, dict)


FAST = {"header beyond the cap", "overlap", "hole", "git-lfs pointer"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in BAD]
)
def test_a_bad_file_is_refused(command: Command, tmp_path: Path, name: str) -> None:
    outcome = command("checkpoint", "census", folder_with(tmp_path, BAD[name]))
    assert outcome.code == 2, outcome
    assert "model.safetensors" in outcome.err
    if name == "git-lfs pointer":
        assert "lfs" in outcome.err.lower()
    if name == "HTML page":
        assert "html" in outcome.err.lower()


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["../outside.safetensors", "/etc/passwd", "missing.safetensors"])
def test_shards_stay_below_the_root(command: Command, tmp_path: Path, shard: str) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (tmp_path / "outside.safetensors").write_bytes(GOOD)
    index = {"metadata": {"total_size": 16}, "weight_map": {"a": shard, "b": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    outcome = command("checkpoint", "census", folder)
    assert outcome.code == 2, outcome


@pytest.mark.slow
def test_a_link_out_of_the_root_is_refused(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (tmp_path / "outside.safetensors").write_bytes(GOOD)
    (folder / "model.safetensors").symlink_to("../outside.safetensors")
    outcome = command("checkpoint", "census", folder)
    assert outcome.code == 2, outcome


@pytest.mark.slow
def test_pickled_checkpoints_are_not_read(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04K\x01.")
    outcome = command("checkpoint", "census", folder)
    assert outcome.code == 2, outcome

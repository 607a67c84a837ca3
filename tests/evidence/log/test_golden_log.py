"""A log of format version 1 over the golden evidence, written once and never again.

Roots and paths were made by another library.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.evidence.log.check import check_against
from harness.evidence.log.checkpoint import Checkpoint, make_checkpoint, read_checkpoint
from harness.evidence.log.proof import prove, read_proof, verify_proof
from harness.evidence.store import Store
from harness.evidence.verify import verify_store

GOLDEN_SHA256 = "fe83bfeecbee47c67816d46ab842d7da178fed316f12bf7dd5a292fc0f0d1fe7"
"""Of the output of ``sha256sum`` over all files, sorted by path."""
FOLDER = Path(__file__).parents[2] / "golden" / "1"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "log.expected.json").read_text("utf-8"))


@pytest.fixture
def golden(tmp_store: Path) -> Store:
    """The golden evidence with its log."""
    shutil.copytree(FOLDER / "evidence", tmp_store, dirs_exist_ok=True)
    shutil.copytree(FOLDER / "log" / "shards", tmp_store / "log")
    return Store(tmp_store)


def test_the_golden_files_are_the_ones_written_then() -> None:
    root = FOLDER / "log"
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root).as_posix()}\n"
        for path in sorted(root.rglob("*"))
        if path.is_file()
    ]
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == GOLDEN_SHA256


def test_version_1_is_sound_and_means_the_same(golden: Store) -> None:
    assert verify_store(golden.root) == []
    path = FOLDER / "log" / "checkpoint.json"
    checkpoint = read_checkpoint(path)
    assert checkpoint.digest == EXPECTED["checkpoint_digest"]
    assert make_checkpoint(golden.root) == checkpoint
    assert checkpoint.encode() == path.read_bytes()
    assert check_against(golden.root, checkpoint) == []


def test_the_proof_of_version_1_holds_and_is_made_again(golden: Store) -> None:
    path = FOLDER / "log" / "proof.json"
    proof, checkpoint = read_proof(path), make_checkpoint(golden.root)
    verify_proof(proof, checkpoint)
    assert prove(golden.root, proof.leaf.name, checkpoint).encode() == path.read_bytes()


def verify(path: Path, checkpoint: Checkpoint) -> None:
    verify_proof(read_proof(path), checkpoint)


@pytest.mark.parametrize("name", EXPECTED["invalid"])
def test_what_is_invalid_is_refused_for_its_reason(golden: Store, name: str) -> None:
    path, expected = FOLDER / "log" / "invalid" / name, EXPECTED["invalid"][name]
    checkpoint = read_checkpoint(FOLDER / "log" / "checkpoint.json")
    if name.startswith("shard-"):
        shard = golden.root / "log" / f"{checkpoint.shards[0].id}.jsonl"
        shard.write_bytes(path.read_bytes())
        problems = [*verify_store(golden.root), *check_against(golden.root, checkpoint)]
        assert (str(shard), expected) in [(problem.path, problem.kind) for problem in problems]
        assert (str(shard), "rewritten") in [(problem.path, problem.kind) for problem in problems]
        return
    with pytest.raises(HarnessError) as caught:
        read_checkpoint(path) if name.startswith("checkpoint-") else verify(path, checkpoint)
    assert expected in str(caught.value)

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.canonical import canonical_bytes
from harness.cli import main
from harness.errors import ContradictionError, HarnessError
from harness.evidence.log.checkpoint import Checkpoint, make_checkpoint
from harness.evidence.log.consistency import (
    ConsistencyProof,
    prove_consistency,
    read_consistency,
    verify_consistency_proof,
)
from harness.evidence.store import Store


@pytest.fixture
def states(logged: Store, sample: ModuleType) -> list[Checkpoint]:
    """Checkpoints of a store between which it grew: by a shard, and by leaves of that shard."""
    found = [make_checkpoint(logged.root)]
    for name in ("e", "f", "g"):
        sample.put_record(logged, salt=name, experiment=name)
        found.append(make_checkpoint(logged.root))
    return found


def test_every_later_checkpoint_extends_every_older_one(
    logged: Store, states: list[Checkpoint], tmp_path: Path
) -> None:
    for index, old in enumerate(states):
        for new in states[index:]:
            proof = prove_consistency(logged.root, old, new)
            path = tmp_path / "proof.json"
            path.write_bytes(proof.encode())
            assert read_consistency(path) == proof
            verify_consistency_proof(read_consistency(path), old, new)


@pytest.mark.parametrize("way", ["backwards", "gone", "rewritten", "statement"])
def test_what_does_not_extend_is_refused(way: str, logged: Store, states: list[Checkpoint]) -> None:
    old, new = states[1], states[2]
    heads = list(new.shards)
    if way == "backwards":
        old, new = new, old
    elif way == "gone":
        new = Checkpoint(shards=tuple(heads[1:]))
    elif way == "rewritten":
        heads[0] = replace(heads[0], root=f"sha256:{'1' * 64}")
        new = Checkpoint(shards=tuple(heads))
    else:
        heads[0] = replace(heads[0], statements=heads[0].statements[1:])
        new = Checkpoint(shards=tuple(heads))
    with pytest.raises(ContradictionError):
        prove_consistency(logged.root, old, new)


def altered_paths(proof: ConsistencyProof) -> list[ConsistencyProof]:
    (name,) = [name for name, path in proof.paths.items() if path]
    path = proof.paths[name]
    other = f"sha256:{'2' * 64}"
    paths: list[dict[str, Any]] = [
        {**proof.paths, name: path[1:]},
        {**proof.paths, name: (*path, other)},
        {**proof.paths, name: (other, *path[1:])},
        {key: value for key, value in proof.paths.items() if key != name},
    ]
    return [replace(proof, paths=each) for each in paths]


def test_a_proof_with_other_hashes_does_not_hold(logged: Store, states: list[Checkpoint]) -> None:
    proof = prove_consistency(logged.root, states[1], states[3])
    for altered in altered_paths(proof):
        with pytest.raises(ContradictionError, match="does not extend"):
            verify_consistency_proof(altered, states[1], states[3])
    with pytest.raises(ContradictionError, match="of other checkpoints"):
        verify_consistency_proof(proof, states[1], states[2])


def test_a_store_that_lost_leaves_proves_nothing(logged: Store, states: list[Checkpoint]) -> None:
    for shard in (logged.root / "log").iterdir():
        shard.write_bytes(b"".join(shard.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(HarnessError):
        prove_consistency(logged.root, states[1], states[3])


Change = Callable[[dict[str, Any]], object]
BROKEN: list[Change] = [
    lambda document: document.pop("old"),
    lambda document: document["shards"].reverse(),
    lambda document: document["shards"].append(document["shards"][0]),
    lambda document: document["shards"][0].update(path=["sha256:short"]),
    lambda document: document.update(more=1),
]


@pytest.mark.parametrize("change", BROKEN, ids=map(str, range(len(BROKEN))))
def test_what_is_no_proof_is_refused(
    change: Change, logged: Store, states: list[Checkpoint], tmp_path: Path
) -> None:
    document = prove_consistency(logged.root, states[1], states[3]).document()
    change(document)
    path = tmp_path / "proof.json"
    path.write_bytes(canonical_bytes(document))
    with pytest.raises(HarnessError, match="not a proof of consistency"):
        read_consistency(path)


def test_commands(
    logged: Store,
    states: list[Checkpoint],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, state in zip(files, (states[0], states[3]), strict=True):
        path.write_bytes(state.encode())
    old, new = map(str, files)
    proof = str(tmp_path / "proof.json")
    log = ["evidence", "log"]
    assert main([*log, "consistency", old, new, str(logged.root), "--out", proof]) == 0
    assert "extends" in capsys.readouterr().out
    assert main([*log, "verify-consistency", proof, old, new, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"old": states[0].digest, "new": states[3].digest}
    assert main([*log, "verify-consistency", proof, new, old]) == 1
    assert main([*log, "consistency", new, old, str(logged.root)]) == 1
    assert main([*log, "consistency", old, proof, str(logged.root)]) == 2

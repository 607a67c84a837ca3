import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.canonical import canonical_bytes
from harness.errors import ContradictionError, EvidenceError, InvalidInputError
from harness.evidence.log.checkpoint import make_checkpoint
from harness.evidence.log.proof import InclusionProof, prove, read_proof, verify_proof
from harness.evidence.log.shard import read_log
from harness.evidence.store import Store


def name_of(store: Store) -> str:
    return f"records/{store.digests('records')[0][7:]}.json"


@pytest.fixture
def proof(logged: Store) -> InclusionProof:
    return prove(logged.root, name_of(logged), make_checkpoint(logged.root))


def test_every_file_of_a_store_can_be_proven(logged: Store, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(logged.root)
    names = {leaf.name for shard in read_log(logged.root) for leaf in shard.leaves() if leaf}
    assert len(names) > 10
    for name in sorted(names):
        proof = prove(logged.root, name, checkpoint)
        assert proof.leaf.name == name
        assert proof.leaf.size_bytes == (logged.root / name).stat().st_size
        verify_proof(proof, checkpoint)
    (tmp_path / "proof.json").write_bytes(proof.encode())
    assert read_proof(tmp_path / "proof.json") == proof


def test_a_proof_is_made_for_an_older_checkpoint(logged: Store, sample: ModuleType) -> None:
    checkpoint, name = make_checkpoint(logged.root), name_of(logged)
    newer = sample.put_record(logged, salt="e", experiment="e")
    verify_proof(prove(logged.root, name, checkpoint), checkpoint)
    with pytest.raises(EvidenceError, match="no shard of the log names it"):
        prove(logged.root, f"records/{newer[7:]}.json", checkpoint)
    prove(logged.root, f"records/{newer[7:]}.json", make_checkpoint(logged.root))


def test_a_rewritten_log_proves_nothing(logged: Store) -> None:
    checkpoint = make_checkpoint(logged.root)
    for shard in list(read_log(logged.root)):
        shard.path.write_bytes(b"".join(line + b"\n" for line in reversed(shard.lines)))
    with pytest.raises(ContradictionError, match="does not hold"):
        prove(logged.root, name_of(logged), checkpoint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: replace(p, leaf=replace(p.leaf, size_bytes=1)), "does not hold"),
        (lambda p: replace(p, leaf=replace(p.leaf, digest="sha256:" + "0" * 64)), "does not hold"),
        (lambda p: replace(p, leaf_index=p.leaf_index + 1), "does not hold"),
        (lambda p: replace(p, path=p.path[:-1]), "does not hold"),
        (lambda p: replace(p, path=(*p.path, p.path[0])), "does not hold"),
        (lambda p: replace(p, path=(p.root, *p.path[1:])), "does not hold"),
        (lambda p: replace(p, num_leaves=p.num_leaves - 1), "another head"),
        (lambda p: replace(p, root="sha256:" + "0" * 64), "another head"),
        (lambda p: replace(p, shard="0" * 32), "another head"),
    ],
)
def test_a_changed_proof_is_refused(
    logged: Store, proof: InclusionProof, change: Any, message: str
) -> None:
    checkpoint = make_checkpoint(logged.root)
    verify_proof(proof, checkpoint)
    with pytest.raises(ContradictionError, match=message):
        verify_proof(change(proof), checkpoint)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("leaf", {"name": "../x", "size_bytes": 1, "digest": "sha256:" + "0" * 64}),
        ("leaf", {"name": "records/x.json", "size_bytes": 1, "digest": "sha256:" + "0" * 64}),
        ("leaf", None),
        ("leaf_index", -1),
        ("leaf_index", True),
        ("num_leaves", 10**15),
        ("path", ["sha256:" + "0" * 64] * 65),
        ("path", ["0" * 64]),
        ("shard", "../" + "0" * 29),
        ("more", 1),
    ],
)
def test_what_is_no_proof_is_refused(
    proof: InclusionProof, tmp_path: Path, name: str, value: Any
) -> None:
    document = json.loads(proof.encode())
    document[name] = value
    path = tmp_path / "proof.json"
    path.write_bytes(canonical_bytes(document))
    with pytest.raises(InvalidInputError):
        read_proof(path)

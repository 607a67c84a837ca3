"""Proofs that one checkpoint of a log extends another, to be checked without the store.

For each shard of the older checkpoint the hashes of RFC 6962, section 2.1.2: whoever keeps both
checkpoints then knows that nothing was removed or replaced between them. Knows shards and
checkpoints; the mathematics is in ``merkle``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.canonical import canonical_bytes, parse_json, read_bounded
from harness.errors import ContradictionError, EvidenceError
from harness.evidence.documents import refuse, schema_errors
from harness.evidence.log.checkpoint import Checkpoint, ShardHead
from harness.evidence.log.merkle import consistency_proof, leaf_hash, verify_consistency
from harness.evidence.log.shard import read_shard, shard_path

CONSISTENCY_SCHEMA = "harness.log-consistency/1"
MAX_CONSISTENCY_BYTES = 64 << 20
_SCHEMA_FILE = "log-consistency-1.schema.json"


@dataclass(frozen=True, kw_only=True)
class ConsistencyProof:
    """The hashes that lead from the heads of one checkpoint to those of a later one."""

    old: str
    """Digest of the older checkpoint."""
    new: str
    paths: Mapping[str, tuple[str, ...]]
    """By shard of the older checkpoint."""

    def document(self) -> dict[str, Any]:
        """The proof as a JSON document."""
        shards = [{"id": name, "path": list(self.paths[name])} for name in sorted(self.paths)]
        return {"schema": CONSISTENCY_SCHEMA, "old": self.old, "new": self.new, "shards": shards}

    def encode(self) -> bytes:
        """The bytes of a proof file: canonical JSON and a line feed."""
        return canonical_bytes(self.document()) + b"\n"


def prove_consistency(root: Path, old: Checkpoint, new: Checkpoint) -> ConsistencyProof:
    """Prove that one checkpoint of a store's log extends another.

    Args:
        root: The store's folder.
        old: The older checkpoint.
        new: The later one.

    Raises:
        ContradictionError: When it does not, or the log is not the one of the later checkpoint.
    """
    heads = {head.id: head for head in new.shards}
    paths = {}
    for head in old.shards:
        later = heads.get(head.id)
        path: tuple[str, ...] = ()
        if later is not None and later.num_leaves > head.num_leaves:
            path = _path(root, head, later)
        paths[head.id] = path
    proof = ConsistencyProof(old=old.digest, new=new.digest, paths=paths)
    verify_consistency_proof(proof, old, new)
    return proof


def _path(root: Path, head: ShardHead, later: ShardHead) -> tuple[str, ...]:
    shard = read_shard(shard_path(root, head.id))
    if len(shard.lines) < later.num_leaves:
        raise ContradictionError(
            "the log is shorter than the later checkpoint says",
            expected=f"{later.num_leaves} leaves",
            got=f"{len(shard.lines)} leaves",
            where=str(shard.path),
        )
    hashes = [leaf_hash(line) for line in shard.lines[: later.num_leaves]]
    return tuple(f"sha256:{each.hex()}" for each in consistency_proof(hashes, head.num_leaves))


def read_consistency(path: Path) -> ConsistencyProof:
    """Read and check the form of a proof file; whether it holds is another question.

    Raises:
        EvidenceError: When it is no such proof.
    """
    where = str(path)
    data = read_bounded(path, max_bytes=MAX_CONSISTENCY_BYTES)
    document = parse_json(data, where=where, max_bytes=MAX_CONSISTENCY_BYTES)
    refuse("not a proof of consistency", schema_errors(_SCHEMA_FILE, document), where=where)
    names = [shard["id"] for shard in document["shards"]]
    if names != sorted(set(names)):
        raise EvidenceError(
            "not a proof of consistency", expected="shards sorted by id, each once", where=where
        )
    return ConsistencyProof(
        old=document["old"],
        new=document["new"],
        paths={shard["id"]: tuple(shard["path"]) for shard in document["shards"]},
    )


def verify_consistency_proof(proof: ConsistencyProof, old: Checkpoint, new: Checkpoint) -> None:
    """Check that a proof leads from one checkpoint to a later one.

    Raises:
        ContradictionError: When it is of other checkpoints, or does not hold; names every shard.
    """
    if (proof.old, proof.new) != (old.digest, new.digest):
        raise ContradictionError(
            "the proof is of other checkpoints",
            expected=f"{old.digest} to {new.digest}",
            got=f"{proof.old} to {proof.new}",
        )
    heads = {head.id: head for head in new.shards}
    broken = [
        f"{head.id}: {problem}"
        for head in old.shards
        if (problem := _problem(head, heads.get(head.id), proof.paths.get(head.id)))
    ]
    if broken:
        raise ContradictionError(
            "the later checkpoint does not extend the older one",
            expected="every shard with its leaves, and possibly more",
            got="; ".join(broken[:20]),
        )


def _problem(old: ShardHead, new: ShardHead | None, path: tuple[str, ...] | None) -> str | None:
    if new is None:
        return "is gone"
    if path is None:
        return "the proof does not speak of it"
    gone = sorted(set(old.statements) - set(new.statements))
    if gone:
        return f"{len(gone)} of its statements are gone, such as {gone[0]}"
    roots = (_bytes(old.root), _bytes(new.root))
    hashes = [_bytes(each) for each in path]
    if not verify_consistency(old.num_leaves, new.num_leaves, *roots, hashes):
        return f"its first {old.num_leaves} leaves are not those of {old.root}"
    return None


def _bytes(digest: str) -> bytes:
    return bytes.fromhex(digest.removeprefix("sha256:"))

"""Proofs that one file of a store is in its log, to be checked where only a checkpoint is known.

Knows leaves, shards and checkpoints; the mathematics is in ``merkle``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.canonical import canonical_bytes, parse_json, read_bounded
from harness.errors import ContradictionError, EvidenceError
from harness.evidence.documents import refuse, schema_errors
from harness.evidence.log.checkpoint import Checkpoint
from harness.evidence.log.merkle import inclusion_proof, leaf_hash, verify_inclusion
from harness.evidence.log.shard import Leaf, decode_leaf, read_log

PROOF_SCHEMA = "harness.log-proof/1"
MAX_PROOF_BYTES = 1 << 20
_SCHEMA_FILE = "log-proof-1.schema.json"


@dataclass(frozen=True, kw_only=True)
class InclusionProof:
    """A leaf, its place, and the hashes that lead from it to the head of its shard."""

    leaf: Leaf
    shard: str
    leaf_index: int
    num_leaves: int
    root: str
    path: tuple[str, ...]

    def encode(self) -> bytes:
        """The bytes of a proof file: canonical JSON and a line feed."""
        leaf = {name: getattr(self.leaf, name) for name in ("digest", "name", "size_bytes")}
        fields = {**vars(self), "leaf": leaf, "path": list(self.path)}
        return canonical_bytes({"schema": PROOF_SCHEMA, **fields}) + b"\n"


def prove(root: Path, name: str, checkpoint: Checkpoint) -> InclusionProof:
    """Prove that a file is in the log.

    Args:
        root: The store's folder.
        name: The file's name inside the store.
        checkpoint: Whose heads the proof leads to.

    Raises:
        EvidenceError: When no shard names the file among the leaves of the checkpoint.
        ContradictionError: When the shard that does so no longer extends the checkpoint's.
    """
    heads = {head.id: head for head in checkpoint.shards}
    for shard in read_log(root):
        head = heads.get(shard.id)
        if head is None:
            continue
        for index, leaf in enumerate(shard.leaves()):
            if index >= head.num_leaves:
                break
            if leaf is not None and leaf.name == name:
                hashes = [leaf_hash(line) for line in shard.lines[: head.num_leaves]]
                proof = InclusionProof(
                    leaf=leaf,
                    shard=shard.id,
                    leaf_index=index,
                    num_leaves=head.num_leaves,
                    root=head.root,
                    path=tuple(_prefixed(each) for each in inclusion_proof(hashes, index)),
                )
                verify_proof(proof, checkpoint)
                return proof
    raise EvidenceError(
        "no shard of the log names it",
        expected=f"{name} among the checkpoint's {checkpoint.num_leaves} leaves",
        where=str(root),
        hint="append what is missing with `harness evidence log update`, "
        "or prove it against a later checkpoint",
    )


def read_proof(path: Path) -> InclusionProof:
    """Read and check the form of a proof file; whether it holds is :func:`verify_proof`.

    Raises:
        EvidenceError: When it is no proof.
    """
    where = str(path)
    document: Any = parse_json(read_bounded(path, max_bytes=MAX_PROOF_BYTES), where=where)
    refuse("not a proof of inclusion", schema_errors(_SCHEMA_FILE, document), where=where)
    fields = {name: value for name, value in document.items() if name != "schema"}
    leaf = Leaf(**document["leaf"])
    broken = [] if decode_leaf(leaf.encode()) == leaf else ["$.leaf.name: not a file of a store"]
    refuse("not a proof of inclusion", broken, where=where)
    return InclusionProof(**{**fields, "leaf": leaf, "path": tuple(document["path"])})


def verify_proof(proof: InclusionProof, checkpoint: Checkpoint) -> None:
    """Check a proof against a checkpoint that was kept elsewhere.

    Raises:
        ContradictionError: When it does not lead to the head of its shard in the checkpoint.
    """
    heads = {head.id: (head.num_leaves, head.root) for head in checkpoint.shards}
    known = heads.get(proof.shard)
    if known != (proof.num_leaves, proof.root):
        raise ContradictionError(
            "the proof is for another head than the checkpoint's",
            expected="no such shard" if known is None else f"{known[1]} over {known[0]} leaves",
            got=f"{proof.root} over {proof.num_leaves} leaves",
            where=f"shard {proof.shard}",
            hint="make the proof anew with `harness evidence log prove --checkpoint`",
        )
    if not verify_inclusion(
        leaf_hash(proof.leaf.encode()),
        proof.leaf_index,
        proof.num_leaves,
        _bytes(proof.root),
        [_bytes(each) for each in proof.path],
    ):
        raise ContradictionError(
            "the proof does not hold",
            expected=f"a path from leaf {proof.leaf_index} to {proof.root}",
            got=f"{proof.leaf.name}, {proof.leaf.size_bytes} bytes, {proof.leaf.digest}",
            where=f"shard {proof.shard}",
        )


def _prefixed(digest: bytes) -> str:
    return f"sha256:{digest.hex()}"


def _bytes(digest: str) -> bytes:
    return bytes.fromhex(digest.removeprefix("sha256:"))

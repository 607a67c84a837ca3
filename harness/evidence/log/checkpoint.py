"""A checkpoint: the head of every shard at one moment, to be kept where the store is not.

Whoever keeps one can later tell that no record it names was removed or replaced, even when every
hash inside the store was computed anew. Knows heads, nothing of what the files hold.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.canonical import canonical_bytes, parse_json, read_bounded, sha256_digest
from harness.evidence.documents import refuse, schema_errors
from harness.evidence.log.shard import Shard, read_log

CHECKPOINT_SCHEMA = "harness.log-checkpoint/1"
MAX_CHECKPOINT_BYTES = 64 << 20
_SCHEMA_FILE = "log-checkpoint-1.schema.json"
_STATEMENT = re.compile(r"\A(?:records|verdicts|studies|signatures)/[0-9a-f.]+\.json\Z")


@dataclass(frozen=True, kw_only=True)
class ShardHead:
    """One shard as it was when the checkpoint was made."""

    id: str
    num_leaves: int
    root: str
    """``sha256:`` and the tree head over these leaves."""
    statements: tuple[str, ...]
    """The records, verdicts, studies and signatures among them, sorted: a root cannot tell which of
    them is gone. Everything else is bound by one of these."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The heads of all shards, sorted by id."""

    shards: tuple[ShardHead, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical document without its field ``digest``."""
        return sha256_digest(canonical_bytes(self._heads()))

    @property
    def num_leaves(self) -> int:
        """Leaves of all shards."""
        return sum(shard.num_leaves for shard in self.shards)

    def document(self) -> dict[str, Any]:
        """The checkpoint as a JSON document."""
        return {**self._heads(), "digest": self.digest}

    def encode(self) -> bytes:
        """The bytes of a checkpoint file: canonical JSON and a line feed."""
        return canonical_bytes(self.document()) + b"\n"

    def _heads(self) -> dict[str, Any]:
        heads = [{**vars(shard), "statements": list(shard.statements)} for shard in self.shards]
        return {"schema": CHECKPOINT_SCHEMA, "shards": heads}


def shard_head(shard: Shard) -> ShardHead:
    """The present head of a shard."""
    names = {leaf.name for leaf in shard.leaves() if leaf is not None}
    return ShardHead(
        id=shard.id,
        num_leaves=len(shard.lines),
        root=f"sha256:{shard.head().hex()}",
        statements=tuple(sorted(name for name in names if _STATEMENT.match(name))),
    )


def make_checkpoint(root: Path) -> Checkpoint:
    """The present heads of a store's log; it has no shards when there is no log."""
    return Checkpoint(shards=tuple(shard_head(shard) for shard in read_log(root)))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint file (see :func:`parse_checkpoint`)."""
    data = read_bounded(path, max_bytes=MAX_CHECKPOINT_BYTES)
    return parse_checkpoint(data, where=str(path))


def parse_checkpoint(data: bytes, *, where: str) -> Checkpoint:
    """Parse and check a checkpoint.

    Raises:
        InvalidInputError: When it is not strict JSON.
        EvidenceError: When it breaks its schema, is not sorted, or its digest is another.
    """
    document = parse_json(data, where=where, max_bytes=MAX_CHECKPOINT_BYTES)
    problem = "not a checkpoint of a log"
    refuse(problem, schema_errors(_SCHEMA_FILE, document), where=where)
    heads = document["shards"]
    checkpoint = Checkpoint(
        shards=tuple(
            ShardHead(**{**head, "statements": tuple(head["statements"])}) for head in heads
        )
    )
    broken = []
    if [head["id"] for head in heads] != sorted({head["id"] for head in heads}):
        broken.append("$.shards: not sorted by id, each once")
    for index, head in enumerate(heads):
        if head["statements"] != sorted(set(head["statements"])):
            broken.append(f"$.shards[{index}].statements: not sorted, each once")
        if not all(_STATEMENT.match(name) for name in head["statements"]):
            broken.append(f"$.shards[{index}].statements: not names of statements")
    if document["digest"] != checkpoint.digest:
        broken.append(f"$.digest: is {document['digest']}, the heads give {checkpoint.digest}")
    refuse(problem, broken, where=where)
    return checkpoint

"""What a store's log amounts to, in three figures. Knows checkpoints only."""

from dataclasses import dataclass
from pathlib import Path

from harness.errors import EvidenceError
from harness.evidence.log.checkpoint import make_checkpoint
from harness.evidence.log.shard import has_log


@dataclass(frozen=True, kw_only=True)
class LogState:
    """The size of a log, and the digest that a checkpoint made now would have."""

    num_shards: int
    num_leaves: int
    digest: str | None
    """``None`` when a shard cannot be read, which verification names."""


def log_state(root: Path) -> LogState | None:
    """The state of a store's log; ``None`` when it keeps none."""
    try:
        if not has_log(root):
            return None
        checkpoint = make_checkpoint(root)
    except EvidenceError:
        return LogState(num_shards=0, num_leaves=0, digest=None)
    return LogState(
        num_shards=len(checkpoint.shards),
        num_leaves=checkpoint.num_leaves,
        digest=checkpoint.digest,
    )

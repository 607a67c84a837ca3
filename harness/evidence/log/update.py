"""Bringing a store's log up to date: its first shard, and what interrupted writers left out.

Knows stores and their problems, nothing of what a record means.
"""

from dataclasses import dataclass
from pathlib import Path

from harness.canonical import file_digest
from harness.errors import EvidenceError
from harness.evidence.files import writing
from harness.evidence.log.shard import Leaf, has_log, read_log
from harness.evidence.log.writer import cut_torn_line
from harness.evidence.scan import Problem
from harness.evidence.store import Store
from harness.evidence.verify import verify_store

MENDED = frozenset({"unlogged", "torn"})
"""Kinds of problems that an update ends."""
HARMLESS = MENDED | {"extra", "leftover"}
"""Kinds of problems that take nothing from what the log would bind."""
_MAX_LISTED = 20


@dataclass(frozen=True, kw_only=True)
class LogUpdate:
    """What an update did."""

    appended: tuple[str, ...]
    """Names that no shard held, sorted."""
    mended: tuple[str, ...]
    """Shards whose cut-off last line was taken off."""


def update_log(store: Store) -> LogUpdate:
    """Append everything that sound statements name, and no shard does, to a new shard.

    Begins the log where there is none. Run it while nothing else writes to the store.

    Raises:
        EvidenceError: When there is no store, or anything in it is damaged or missing.
        NotEvaluableError: When the log cannot be written.
    """
    problems = require_sound(store.root)
    if not has_log(store.root):
        store.start_log()
        problems = verify_store(store.root)
    mended = []
    for shard in read_log(store.root):
        if shard.torn:
            with writing(shard.path):
                cut_torn_line(shard.path, shard.num_bytes)
            mended.append(shard.id)
    unlogged = sorted(each.path for each in problems if each.kind == "unlogged")
    leaves = [_leaf(Path(path), store.root) for path in unlogged]
    store.log(leaves)
    return LogUpdate(appended=tuple(leaf.name for leaf in leaves), mended=tuple(mended))


def require_sound(root: Path) -> list[Problem]:
    """The harmless problems of a store.

    Raises:
        EvidenceError: When there are others, naming the first of them.
    """
    problems = verify_store(root)
    harmful = [each for each in problems if each.kind not in HARMLESS]
    if harmful:
        rest = f"; and {len(harmful) - _MAX_LISTED} more" if len(harmful) > _MAX_LISTED else ""
        raise EvidenceError(
            "the store is damaged",
            expected="every file sound, every reference held",
            got="; ".join(map(str, harmful[:_MAX_LISTED])) + rest,
            where=str(root),
            hint="restore what is missing; `harness evidence verify` lists everything",
        )
    return problems


def _leaf(path: Path, root: Path) -> Leaf:
    name = path.relative_to(root).as_posix()
    return Leaf(name=name, size_bytes=path.stat().st_size, digest=file_digest(path))

"""Shards of a log between a store and a remote one. A shard only grows, in either direction.

A shard is taken only when every file it names is in the store, with its size and digest: one that
names others would make a sound store look incomplete for ever.
"""

from pathlib import Path

from harness.canonical import file_digest
from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.log.shard import (
    LOG_FOLDER,
    MAX_SHARD_BYTES,
    Leaf,
    Shard,
    is_shard_name,
    parse_shard,
    read_log,
    read_shard,
    shard_path,
)
from harness.evidence.merge import take_shard
from harness.evidence.remote.remote import Remote, read, where
from harness.evidence.remote.transfer import Transfer
from harness.evidence.scan import one_line
from harness.evidence.store import Store


def push_shards(root: Path, remote: Remote, done: Transfer) -> None:
    """Bring each shard of a store's log to the length that it has here."""
    present = remote.names(LOG_FOLDER)
    for ours in read_log(root):
        name = f"{LOG_FOLDER}/{ours.path.name}"
        try:
            theirs = _read(remote, name) if ours.path.name in present else None
            if theirs is not None and not _extends(ours, theirs, where(remote, name)):
                done.num_present += 1
                continue
            data = b"".join(line + b"\n" for line in ours.lines)
            remote.put(name, data, replace=theirs is not None)
            done.moved.append(name)
        except InvalidInputError as error:
            done.refused.append(f"{name}: {one_line(error)}")


def pull_shards(remote: Remote, store: Store, done: Transfer) -> None:
    """Bring each shard of the store's log to the length that it has there."""
    names = sorted(name for name in remote.names(LOG_FOLDER) if is_shard_name(name))
    if names:
        store.start_log()
    for file_name in names:
        name = f"{LOG_FOLDER}/{file_name}"
        try:
            theirs = _read(remote, name)
            path = shard_path(store.root, theirs.id)
            ours = read_shard(path) if path.exists() else None
            if ours is not None and not _extends(theirs, ours, where(remote, name)):
                done.num_present += 1
                continue
            _require_files(theirs, store, where(remote, name))
            take_shard(theirs, store.root)
            done.moved.append(name)
        except InvalidInputError as error:
            done.refused.append(f"{name}: {one_line(error)}")


def _read(remote: Remote, name: str) -> Shard:
    place = where(remote, name)
    shard = parse_shard(Path(name), read(remote, name, max_bytes=MAX_SHARD_BYTES))
    if shard.torn or any(leaf is None for leaf in shard.leaves()):
        raise EvidenceError("not a shard: some of its lines are no leaves", where=place)
    return shard


def _extends(longer: Shard, shorter: Shard, place: str) -> bool:
    """Whether one shard has more leaves than the other, and begins with it.

    Raises:
        EvidenceError: When neither begins with the other.
    """
    common = min(len(longer.lines), len(shorter.lines))
    if longer.lines[:common] != shorter.lines[:common]:
        raise EvidenceError(
            "shards of one id have different leaves: somebody rewrote one",
            where=place,
            hint="check both stores against a checkpoint",
        )
    return len(longer.lines) > common


def _require_files(shard: Shard, store: Store, place: str) -> None:
    wrong = sorted({leaf.name for leaf in shard.leaves() if leaf and not _holds(store, leaf)})
    if wrong:
        raise EvidenceError(
            f"names {len(wrong)} files that are not in the store as it says",
            got=", ".join(wrong[:3]),
            where=place,
        )


def _holds(store: Store, leaf: Leaf) -> bool:
    path = store.root / leaf.name
    if path.is_symlink() or path.parent.is_symlink() or not path.is_file():
        return False
    if path.lstat().st_size != leaf.size_bytes:
        return False
    # Every other name is a digest, which verification compares with the bytes.
    in_name = f"sha256:{path.name.split('.')[0]}"
    return leaf.digest == (file_digest(path) if leaf.name.startswith("signatures/") else in_name)

"""Merging one store into another: the union of their files, and of the shards of their logs.

Everything is checked before the first byte is written, and an interrupted merge is completed by
doing it again. Knows stores and shards; whether a record passes, or may be public, is not asked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.canonical import file_digest, write_durable
from harness.errors import EvidenceError
from harness.evidence.files import read_regular, refuse_linked_folder, writing
from harness.evidence.log.shard import Leaf, Shard, has_log, read_log, read_shard, shard_path
from harness.evidence.log.update import require_sound
from harness.evidence.log.writer import append_durable, cut_torn_line
from harness.evidence.references import STATEMENT_TYPES, parse_kind, references_of
from harness.evidence.signing.envelope import MAX_ENVELOPE_BYTES
from harness.evidence.store import SIGNATURE_FOLDER, Kind, Store


@dataclass(frozen=True, kw_only=True)
class Merge:
    """What the other store had and this one had not, sorted."""

    files: tuple[str, ...]
    shards: tuple[str, ...]
    """Shards that were new here, or had grown there."""


def merge(source: Store, target: Store) -> Merge:
    """Copy everything that the statements of ``source`` name, and its shards, into ``target``.

    Where one of them keeps a log, the merged store keeps one that names all that was copied.

    Raises:
        EvidenceError: When the source is damaged, or a shard's leaves differ in the two.
        NotEvaluableError: When something cannot be written.
    """
    require_sound(source.root)
    _require_prefixes(source.root, target.root)
    files, leaves = [], []
    for kind, digest in _named(source):
        path = source.path(kind, digest)
        name = f"{kind}/{path.name}"
        leaves.append(Leaf(name=name, size_bytes=path.lstat().st_size, digest=digest))
        if not target.has(kind, digest):
            target.put(kind, source.read(kind, digest))
            files.append(name)
    for path in _signatures(source):
        name = f"{SIGNATURE_FOLDER}/{path.name}"
        leaves.append(Leaf(name=name, size_bytes=path.lstat().st_size, digest=file_digest(path)))
        if _copy(path, target.root / name):
            files.append(name)
    shards: list[str] = []
    if has_log(source.root) or has_log(target.root):
        target.start_log()
        shards = [shard.id for shard in read_log(source.root) if take_shard(shard, target.root)]
        target.log(leaves, again=True)
    return Merge(files=tuple(sorted(files)), shards=tuple(shards))


def _named(store: Store) -> Iterator[tuple[Kind, str]]:
    """Every file that statements need, before the statement itself; each once."""
    seen: set[tuple[Kind, str]] = set()
    for kind in STATEMENT_TYPES:
        for digest in store.digests(kind):
            path = store.path(kind, digest)
            statement = parse_kind(kind, path)
            named = [(each.kind, each.digest) for each in references_of(statement, path)]
            yield from (key for key in dict.fromkeys([*named, (kind, digest)]) if key not in seen)
            seen.update([*named, (kind, digest)])


def _signatures(store: Store) -> list[Path]:
    folder = store.root / SIGNATURE_FOLDER
    return sorted(folder.glob("[0-9a-f]*.json")) if folder.is_dir() else []


def _copy(path: Path, target: Path) -> bool:
    """Copy one signature; whether it was new."""
    refuse_linked_folder(target.parent)
    new = not target.exists()
    with writing(target):
        write_durable(target, read_regular(path, max_bytes=MAX_ENVELOPE_BYTES))
    return new


def _require_prefixes(source: Path, target: Path) -> None:
    """Refuse shards of one id of which neither extends the other: somebody rewrote one of them."""
    differing = []
    for theirs in read_log(source):
        path = shard_path(target, theirs.id)
        if path.exists():
            ours = read_shard(path)
            shorter = min(len(ours.lines), len(theirs.lines))
            if ours.lines[:shorter] != theirs.lines[:shorter]:
                differing.append(theirs.id)
    if differing:
        raise EvidenceError(
            "shards of one id have different leaves",
            expected="one of the two to begin with the other",
            got=", ".join(differing),
            where=str(target),
            hint="a shard has one writer and only grows: check both stores against a checkpoint",
        )


def take_shard(shard: Shard, target: Path) -> bool:
    """Bring the shard of a store to the length that it has elsewhere; whether that changed it.

    Args:
        shard: As it is elsewhere; the store's own begins with it, or it with the store's own.
        target: The store's folder.
    """
    path = shard_path(target, shard.id)
    ours = read_shard(path) if path.exists() else None
    num_known = 0 if ours is None else len(ours.lines)
    if ours is not None and num_known >= len(shard.lines):
        return False
    with writing(path):
        if ours is not None and ours.torn:
            cut_torn_line(path, ours.num_bytes)
        append_durable(path, b"".join(line + b"\n" for line in shard.lines[num_known:]))
    return True

"""One shard of a store's log: a file of canonical JSON lines, one leaf for each file stored.

    <store>/log/<shard id>.jsonl
    {"digest":"sha256:...","name":"records/<hex>.json","size_bytes":14473}

A line counts once it ends in a line feed; what follows the last one was cut off when its writer was
interrupted, is no leaf, and is named. Knows the form of a shard, nothing of what its files hold.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from harness.canonical import canonical_bytes
from harness.errors import EvidenceError
from harness.evidence.files import read_regular, refuse_linked_folder
from harness.evidence.log.merkle import leaf_hash, tree_head

LOG_FOLDER = "log"
MAX_SHARD_BYTES = 256 << 20
_SHARD_NAME = re.compile(r"\A([0-9a-f]{32})\.jsonl\Z")
_NAME = r"[a-z]{1,32}/[0-9a-f]{64}(?:\.[0-9a-f]{64})?\.[a-z]{1,16}"
_LEAF = re.compile(
    rf'\A{{"digest":"(sha256:[0-9a-f]{{64}})","name":"({_NAME})","size_bytes":'
    r"(0|[1-9][0-9]{0,14})}\Z".encode()
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """One file of a store, as the log binds it."""

    name: str
    """Its path inside the store, such as ``records/<hex>.json``."""
    size_bytes: int
    digest: str

    def encode(self) -> bytes:
        """The canonical JSON that is hashed; a line of a shard without its line feed."""
        return canonical_bytes(
            {"digest": self.digest, "name": self.name, "size_bytes": self.size_bytes}
        )


def decode_leaf(line: bytes) -> Leaf | None:
    """The leaf that a line is, or ``None`` when it is anything but a leaf's canonical form."""
    found = _LEAF.match(line)
    if found is None:
        return None
    digest, name, size = (part.decode() for part in found.groups())
    return Leaf(name=name, size_bytes=int(size), digest=digest)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One shard as it was read."""

    id: str
    path: Path
    lines: tuple[bytes, ...]
    """Its complete lines, without their line feeds."""
    torn: bytes
    """What follows the last line feed; empty unless a writer was interrupted."""

    @property
    def num_bytes(self) -> int:
        """Length of its complete lines."""
        return sum(len(line) + 1 for line in self.lines)

    def leaves(self) -> Iterator[Leaf | None]:
        """Its leaves in order; ``None`` in the place of a line that is not one."""
        return (decode_leaf(line) for line in self.lines)

    def head(self, num_leaves: int | None = None) -> bytes:
        """Head of the tree over the first leaves, or over all."""
        return tree_head(leaf_hash(line) for line in islice(self.lines, num_leaves))


def read_shard(path: Path) -> Shard:
    """Read one shard.

    Raises:
        EvidenceError: When it is not a regular file, is too long, or is not named like a shard.
    """
    if not is_shard_name(path.name):
        raise EvidenceError("not a shard", expected="<32 hex digits>.jsonl", where=str(path))
    return parse_shard(path, read_regular(path, max_bytes=MAX_SHARD_BYTES))


def parse_shard(path: Path, data: bytes) -> Shard:
    """The shard that a file named like one holds."""
    *lines, torn = data.split(b"\n")
    return Shard(id=path.stem, path=path, lines=tuple(lines), torn=torn)


def is_shard_name(name: str) -> bool:
    """Whether a file of this name can be a shard."""
    return _SHARD_NAME.match(name) is not None


def shard_path(root: Path, shard_id: str) -> Path:
    """Where the shard of a store is, or would be."""
    return root / LOG_FOLDER / f"{shard_id}.jsonl"


def has_log(root: Path) -> bool:
    """Whether a store keeps a log: it has the folder for one.

    Raises:
        EvidenceError: When anything but a folder stands there.
    """
    refuse_linked_folder(root / LOG_FOLDER)
    return (root / LOG_FOLDER).is_dir()


def read_log(root: Path) -> Iterator[Shard]:
    """The shards of a store in the order of their ids, one in memory at a time."""
    if has_log(root):
        for path in sorted((root / LOG_FOLDER).iterdir()):
            if is_shard_name(path.name):
                yield read_shard(path)


def not_yet_logged(root: Path, leaves: Iterable[Leaf]) -> list[Leaf]:
    """Those of ``leaves`` that no shard of the store holds, in their order."""
    wanted = {leaf.encode(): leaf for leaf in leaves}
    for shard in read_log(root):
        for line in shard.lines:
            wanted.pop(line, None)
    return list(wanted.values())

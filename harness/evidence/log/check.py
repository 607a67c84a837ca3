"""Checking a store against its own log, and against a checkpoint that was kept elsewhere.

The log inside a store shows what is incomplete; only a checkpoint shows what somebody removed who
also rewrote the log. Knows names, sizes and digests, nothing of how a record is judged.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from harness.errors import EvidenceError
from harness.evidence.log.checkpoint import Checkpoint, ShardHead
from harness.evidence.log.shard import (
    LOG_FOLDER,
    MAX_SHARD_BYTES,
    Leaf,
    Shard,
    is_shard_name,
    read_shard,
    shard_path,
)
from harness.evidence.scan import Entry, FoundFile, Problem, hash_all, one_line, problem, scan

_MAX_LISTED_LINES = 20


def check_log(root: Path, files: Mapping[str, FoundFile], known: Collection[str]) -> list[Problem]:
    """List where a store and its log disagree, leaving out files that have a problem already.

    Args:
        root: The store's folder, with a log.
        files: Every properly named file of the store by its name inside the store.
        known: Paths of the problems found so far.
    """
    problems: list[Problem] = []
    unlogged = dict(files)
    for entry in scan(root / LOG_FOLDER, problems, max_bytes=MAX_SHARD_BYTES):
        path = entry.path
        if not is_shard_name(path.name):
            problems.append(problem(path, "extra", "is not named like a shard of a log"))
            continue
        try:
            shard = read_shard(path)
        except EvidenceError as error:
            problems.append(problem(path, "unsafe", one_line(error)))
            continue
        problems += _form(shard)
        for index, leaf in enumerate(shard.leaves()):
            if leaf is not None:
                unlogged.pop(leaf.name, None)
                problems += _compare(root, leaf, files.get(leaf.name), f"{shard.id}[{index}]")
    text = "no shard of the log names it; `harness evidence log update` appends it"
    problems += [problem(file.path, "unlogged", text) for file in unlogged.values()]
    return [each for each in problems if each.path not in known]


def _form(shard: Shard) -> list[Problem]:
    problems = []
    wrong = [number for number, leaf in enumerate(shard.leaves(), start=1) if leaf is None]
    if wrong:
        rest = (
            f" and {len(wrong) - _MAX_LISTED_LINES} more" if len(wrong) > _MAX_LISTED_LINES else ""
        )
        numbers = ", ".join(map(str, wrong[:_MAX_LISTED_LINES]))
        problems.append(problem(shard.path, "invalid", f"no leaf in line {numbers}{rest}"))
    if shard.torn:
        text = "its last line was cut off when its writer was interrupted, and is not counted; "
        text += "`harness evidence log update` takes it off"
        problems.append(problem(shard.path, "torn", text))
    return problems


def _compare(root: Path, leaf: Leaf, file: FoundFile | None, place: str) -> list[Problem]:
    if file is None:
        return [problem(root / leaf.name, "missing", f"is missing: the log names it ({place})")]
    if (file.size_bytes, file.digest) == (leaf.size_bytes, leaf.digest):
        return []
    text = f"the log binds {leaf.size_bytes} bytes with {leaf.digest} ({place}), the file has "
    return [problem(file.path, "modified", f"{text}{file.size_bytes} with {file.digest}")]


def check_against(root: Path, checkpoint: Checkpoint) -> list[Problem]:
    """List all that was removed or replaced since a checkpoint was made, sorted.

    Args:
        root: The store's folder.
        checkpoint: Of this store, kept where nobody who can write to the store could change it.

    Raises:
        EvidenceError: When there is no such folder.
    """
    if not root.is_dir():
        raise EvidenceError("no evidence store here", expected="a folder", where=str(root))
    problems: list[Problem] = []
    expected: dict[str, Leaf | None] = {}
    for head in checkpoint.shards:
        for name, leaf in _expected(root, head, problems).items():
            expected[name] = leaf or expected.get(name)
    present = []
    for name in sorted(expected):
        path = root / name
        if path.is_symlink() or path.parent.is_symlink() or not path.is_file():
            problems.append(problem(path, "missing", "is missing, and the checkpoint binds it"))
        else:
            present.append(Entry(path.parent, path.name, path.stat().st_size))
    for file in hash_all(present, problems):
        name = file.path.relative_to(root).as_posix()
        bound = expected[name]
        digest = f"sha256:{file.path.stem}" if bound is None else bound.digest
        # Nothing but its key and its record determines a signature, so only its leaf could tell.
        if file.digest != digest and not (bound is None and name.startswith("signatures/")):
            text = f"was replaced: the checkpoint binds {digest}, the file has {file.digest}"
            problems.append(problem(file.path, "modified", text))
    return sorted(set(problems))


def _expected(root: Path, head: ShardHead, problems: list[Problem]) -> dict[str, Leaf | None]:
    """Files that a checkpointed shard binds; without leaves where the shard is not the same."""
    path = shard_path(root, head.id)
    named: dict[str, Leaf | None] = dict.fromkeys(head.statements)
    try:
        shard = read_shard(path)
    except EvidenceError as error:
        kind = "unsafe" if path.is_symlink() or path.exists() else "missing"
        problems.append(problem(path, kind, f"{one_line(error)}; the checkpoint names this shard"))
        return named
    num_leaves = min(len(shard.lines), head.num_leaves)
    found = f"sha256:{shard.head(num_leaves).hex()}"
    if (num_leaves, found) != (head.num_leaves, head.root):
        text = f"does not extend the checkpoint's {head.num_leaves} leaves with root {head.root}: "
        problems.append(problem(path, "rewritten", f"{text}its first {num_leaves} have {found}"))
        return named
    leaves = [leaf for leaf in list(shard.leaves())[:num_leaves] if leaf is not None]
    return {leaf.name: leaf for leaf in leaves}

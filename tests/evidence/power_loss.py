"""What a disk may hold after a loss of power, from the steps that were taken before it.

What was not synced may be there or not, in any combination: of a file's bytes a part, or zeros; of
a folder's names each change on its own, in spite of the order in which they were made. What was
synced is there. Knows the steps of ``fault_layer``, nothing of stores.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from fault_layer import Perform, Step


@dataclass
class Inode:
    """A file, whatever its names."""

    synced: bytes = b""
    data: bytes = b""

    def variants(self) -> list[bytes]:
        """What may be found in it: synced bytes, and of the rest nothing, half, zeros or all."""
        if self.data == self.synced:
            return [self.data]
        if not self.data.startswith(self.synced):
            return [self.synced, self.data]
        rest = self.data[len(self.synced) :]
        parts = [b"", rest[: len(rest) // 2], bytes(len(rest)), rest]
        return [self.synced + part for part in dict.fromkeys(parts)]


@dataclass(frozen=True)
class Change:
    """One name of a folder appears (of a file, or of a folder without one) or disappears."""

    path: Path
    appears: bool
    inode: Inode | None = None


@dataclass
class Disk:
    """Takes steps as a policy of ``fault_layer``, and knows what each left unsynced."""

    root: Path
    """Everything below it is followed; it is there already, and empty."""
    files: dict[Path, Inode] = field(default_factory=dict)
    settled: list[Change] = field(default_factory=list)
    pending: list[Change] = field(default_factory=list)
    moments: list["Moment"] = field(default_factory=list)
    promises: list[str] = field(default_factory=list)

    def __call__(self, step: Step, perform: Perform) -> Any:
        result = perform()
        path = step.path
        if step.kind == "create":
            self._change(path, Inode())
        elif step.kind == "write":
            self.files[path].data += step.data
        elif step.kind == "truncate":
            self.files[path].data = self.files[path].data[: int(step.data)]
        elif step.kind == "link":
            assert step.source is not None
            self._change(path, self.files[step.source])
        elif step.kind == "unlink":
            self.pending.append(Change(path, False))
        elif step.kind == "mkdir":
            self.pending.append(Change(path, True))
        elif path in self.files:
            self.files[path].synced = self.files[path].data
        else:
            here = [change for change in self.pending if change.path.parent == path]
            self.settled += here
            self.pending = [change for change in self.pending if change not in here]
        self.note()
        return result

    def promise(self, what: str) -> None:
        """From now on ``what`` was said to be kept."""
        self.promises.append(what)
        self.note()

    def note(self) -> None:
        """Remember this moment as one at which the power may go."""
        inodes = {id(inode): inode for inode in self.files.values()}
        copies = {key: replace(inode) for key, inode in inodes.items()}
        settled, pending = (
            [replace(change, inode=change.inode and copies[id(change.inode)]) for change in changes]
            for changes in (self.settled, self.pending)
        )
        self.moments.append(Moment(self.root, settled, pending, tuple(self.promises)))

    def _change(self, path: Path, inode: Inode) -> None:
        self.files[path] = inode
        self.pending.append(Change(path, True, inode))


@dataclass
class Moment:
    """One moment of a disk."""

    root: Path
    settled: list[Change]
    pending: list[Change]
    promises: tuple[str, ...]

    def states(self) -> Iterator[dict[Path, bytes | None]]:
        """Every state that may be found: paths below the root, ``None`` for a folder."""
        for chosen in product((False, True), repeat=len(self.pending)):
            changes = list(self.settled)
            changes += [c for c, there in zip(self.pending, chosen, strict=True) if there]
            names: dict[Path, Change] = {}
            for change in changes:
                if change.appears:
                    names[change.path] = change
                else:
                    names.pop(change.path, None)
            reached = {path: change for path, change in names.items() if self._reached(path, names)}
            inodes = {id(c.inode): c.inode for c in reached.values() if c.inode is not None}
            for contents in product(*(inode.variants() for inode in inodes.values())):
                data = dict(zip(inodes, contents, strict=True))
                yield {
                    path.relative_to(self.root): None if c.inode is None else data[id(c.inode)]
                    for path, c in reached.items()
                }

    def _reached(self, path: Path, names: dict[Path, Change]) -> bool:
        """Whether every folder above it is there too."""
        above = [each for each in path.parents if each.is_relative_to(self.root)]
        return all(each == self.root or each in names for each in above)


def write_state(state: dict[Path, bytes | None], target: Path) -> None:
    """Lay a state out as files under ``target``."""
    target.mkdir()
    for path in sorted(state, key=lambda each: len(each.parts)):
        data = state[path]
        if data is None:
            (target / path).mkdir()
        else:
            (target / path).write_bytes(data)

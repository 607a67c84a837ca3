"""Which pages of a process belong to no declared arena, and by how much they have grown.

Four kinds are counted, each outside the declared arenas:

- *private anonymous*: heap, stacks and anonymous mappings;
- *shared anonymous*: ``mmap`` of nothing, System V segments, anonymous huge pages;
- *memfd*: memory files, mapped or only open;
- *new file*: growth of mapped files since the baseline. A file counts by every resident page of
  it, since reading a mapping of a data file holds a copy as well as writing one. A *library* (an
  ELF file with an executable mapping) counts only by its private, copied-on-write pages: its clean
  pages are code and constants that all processes share, and loading one is not holding data.

Swapped pages count as held. Unplanned bytes are the sum over the kinds of the growth beyond the
baseline, each at least 0, so that a kind which shrank cannot hide one which grew; files are
compared one by one for the same reason. ``BLIND_SPOTS`` in :mod:`harness.measure.words` lists what
cannot be seen this way.
Knows nothing of plans or of who declares arenas.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.measure.proc import Descriptor, MappingUsage, MemoryMapping
from harness.measure.readings import ArenaReading, DeclaredArena

Kind = Literal["private_anonymous", "shared_anonymous", "memfd", "file", "kernel"]
Identity = tuple[int, int, int]

_KERNEL_NAMES = ("[vdso]", "[vsyscall]", "[vvar", "[uprobes]")
_SHARED_NAMES = ("/SYSV", "[anon_shmem:", "/anon_hugepage")
_DELETED = " (deleted)"


def kind_of(mapping: MemoryMapping) -> Kind:
    """Classify a mapping by the name the kernel gives it."""
    path = mapping.path
    if path.startswith("/memfd:"):
        return "memfd"
    if path.startswith(_SHARED_NAMES) or path == "/dev/zero (deleted)":
        return "shared_anonymous"
    if path.startswith(_KERNEL_NAMES):
        return "kernel"
    return "file" if path.startswith("/") or mapping.inode else "private_anonymous"


def file_name(path: str) -> str:
    """Last component of a mapped file's path, without the kernel's mark of a deleted file."""
    return path.removesuffix(_DELETED).rpartition("/")[2] or path


class ArenaRegistry:
    """Finds declared arenas among the mappings of one process, and remembers which they are.

    An arena is one shared anonymous mapping of its own, known by its inode from the first reading
    that declares it. Another mapping that takes the address after a release is not the arena.
    """

    def __init__(self) -> None:
        self._known: dict[DeclaredArena, Identity] = {}

    def locate(
        self, declared: Sequence[DeclaredArena], usages: Sequence[MappingUsage]
    ) -> tuple[list[ArenaReading], dict[int, int]]:
        """Read each declared arena.

        Returns:
            One reading per declaration, in order, and, by start address of every mapping that is
            an arena, the bytes that it holds outside the declared range.
        """
        shared = [usage for usage in usages if kind_of(usage.mapping) == "shared_anonymous"]
        starts = {usage.mapping.start: usage for usage in shared}
        for arena in declared:
            first = starts.get(arena.address)
            if arena not in self._known and first is not None:
                identity = first.mapping.identity
                if identity not in self._known.values():
                    self._known[arena] = identity
        by_identity: dict[Identity, list[MappingUsage]] = {}
        for usage in shared:
            by_identity.setdefault(usage.mapping.identity, []).append(usage)
        outside: dict[int, int] = {}
        readings = []
        for arena in declared:
            known = self._known.get(arena)
            pieces = by_identity.get(known, []) if known is not None else []
            readings.append(self._read(arena, pieces, outside))
        return readings, outside

    @staticmethod
    def _read(
        arena: DeclaredArena, pieces: Iterable[MappingUsage], outside: dict[int, int]
    ) -> ArenaReading:
        end = arena.address + arena.length
        mapped = resident = 0
        for usage in pieces:
            overlap = min(end, usage.mapping.end) - max(arena.address, usage.mapping.start)
            if overlap <= 0:
                continue
            # Which pages are resident is not known, so as many as possible count as outside.
            surplus = usage.mapping.size_bytes - overlap
            outside[usage.mapping.start] = min(usage.held_bytes, surplus)
            mapped += overlap
            resident += max(0, usage.rss_bytes + usage.hugetlb_bytes - surplus)
        return ArenaReading(
            materialization_id=arena.materialization_id,
            mapped_bytes=mapped,
            resident_bytes=resident,
        )


@dataclass(frozen=True, kw_only=True)
class FileUse:
    """The pages of one mapped file, over all its mappings."""

    name: str
    held_bytes: int
    private_bytes: int
    """Copied-on-write pages."""
    is_library: bool

    def growth_bytes(self, before: "FileUse | None") -> int:
        """Bytes that count as new since ``before`` (``None``: it was not mapped)."""
        if self.is_library:
            return max(0, self.private_bytes - (before.private_bytes if before else 0))
        return max(0, self.held_bytes - (before.held_bytes if before else 0))


@dataclass(frozen=True, kw_only=True)
class PageCount:
    """Pages outside the arenas at one moment."""

    private_anonymous_bytes: int
    shared_anonymous_bytes: int
    memfd_bytes: int
    files: Mapping[Identity, FileUse]

    def new_files(self, baseline: "PageCount") -> tuple[str, ...]:
        """Names of files mapped now and not at the baseline, sorted."""
        new = self.files.keys() - baseline.files.keys()
        return tuple(sorted({self.files[identity].name for identity in new}))

    def new_file_bytes(self, baseline: "PageCount") -> int:
        """Growth of mapped files over the baseline."""
        return sum(
            use.growth_bytes(baseline.files.get(identity)) for identity, use in self.files.items()
        )

    def unplanned_bytes(self, baseline: "PageCount") -> int:
        """Growth of all kinds over the baseline."""
        return (
            max(0, self.private_anonymous_bytes - baseline.private_anonymous_bytes)
            + max(0, self.shared_anonymous_bytes - baseline.shared_anonymous_bytes)
            + max(0, self.memfd_bytes - baseline.memfd_bytes)
            + self.new_file_bytes(baseline)
        )


def _is_elf(path: str) -> bool:
    # A file that cannot be read counts as data: rather too many pages than too few.
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except (OSError, ValueError):
        return False


def _memfd_bytes(usages: Iterable[MappingUsage], descriptors: Iterable[Descriptor]) -> int:
    """Pages of memory files; one that is open but not mapped has only its blocks to show."""
    pages: dict[Identity, int] = {}
    copied = 0
    for usage in usages:
        key = usage.mapping.identity
        in_file = usage.rss_bytes + usage.hugetlb_bytes - usage.anonymous_bytes
        pages[key] = pages.get(key, 0) + in_file
        copied += usage.anonymous_bytes + usage.swap_bytes
    for descriptor in descriptors:
        if descriptor.path.startswith("/memfd:"):
            key = descriptor.identity
            pages[key] = max(pages.get(key, 0), descriptor.allocated_bytes)
    return sum(pages.values()) + copied


def _file_uses(usages: Iterable[MappingUsage]) -> dict[Identity, FileUse]:
    grouped: dict[Identity, list[MappingUsage]] = {}
    for usage in usages:
        grouped.setdefault(usage.mapping.identity, []).append(usage)
    return {
        identity: FileUse(
            name=file_name(group[0].mapping.path),
            held_bytes=sum(usage.held_bytes for usage in group),
            private_bytes=sum(usage.anonymous_bytes + usage.swap_bytes for usage in group),
            is_library=any("x" in usage.mapping.permissions for usage in group)
            and _is_elf(group[0].mapping.path),
        )
        for identity, group in grouped.items()
    }


def count_pages(
    usages: Sequence[MappingUsage],
    descriptors: Sequence[Descriptor],
    outside_arenas: Mapping[int, int],
) -> PageCount:
    """Count pages by kind.

    Args:
        usages: Every mapping of the process.
        descriptors: Its open descriptors.
        outside_arenas: From :meth:`ArenaRegistry.locate`: what arenas hold beyond their range.
    """
    by_kind: dict[Kind, list[MappingUsage]] = {}
    for usage in usages:
        by_kind.setdefault(kind_of(usage.mapping), []).append(usage)
    return PageCount(
        private_anonymous_bytes=sum(
            usage.held_bytes for usage in by_kind.get("private_anonymous", ())
        ),
        shared_anonymous_bytes=sum(
            outside_arenas.get(usage.mapping.start, usage.held_bytes)
            for usage in by_kind.get("shared_anonymous", ())
        ),
        memfd_bytes=_memfd_bytes(by_kind.get("memfd", ()), descriptors),
        files=_file_uses(by_kind.get("file", ())),
    )

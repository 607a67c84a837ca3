"""Parsers of ``/proc/<pid>``: status, stat, maps, smaps and fd, with every size in bytes.

Each parser takes the file's bytes, so that recorded samples can be read too; each ``read_``
function reads one live process. A process that has ended is a clear error. Knows nothing of which
pages were planned.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError, NotEvaluableError

PROC = Path("/proc")
MAX_PROC_FILE_BYTES = 256 << 20
"""More than the kernel's default limit of 65,530 mappings can fill."""
_HEADER = re.compile(
    rb"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) ([0-9a-f]+:[0-9a-f]+) (\d+)(?: +(.*))?\Z"
)


@dataclass(frozen=True, kw_only=True)
class ProcessStatus:
    """Memory and thread counts of ``/proc/<pid>/status``."""

    vm_rss_bytes: int
    vm_hwm_bytes: int
    rss_anon_bytes: int
    rss_file_bytes: int
    rss_shmem_bytes: int
    vm_swap_bytes: int
    num_threads: int


@dataclass(frozen=True, kw_only=True)
class ProcessStat:
    """Counters of ``/proc/<pid>/stat``."""

    state: str
    """One letter; ``Z`` and ``X`` mean that the process has ended."""
    minor_faults: int
    major_faults: int
    start_ticks: int
    """Start time since boot; together with the process id it names one process for good."""

    @property
    def has_ended(self) -> bool:
        """Whether the process only waits to be reaped."""
        return self.state in ("Z", "X")


@dataclass(frozen=True, kw_only=True)
class MemoryMapping:
    """One line of ``/proc/<pid>/maps``: the half-open address range [start, end)."""

    start: int
    end: int
    permissions: str
    offset_bytes: int
    device: tuple[int, int]
    """Major and minor number."""
    inode: int
    path: str
    """File path, pseudo name such as ``[heap]``, or empty."""

    @property
    def size_bytes(self) -> int:
        """Length of the address range."""
        return self.end - self.start

    @property
    def identity(self) -> tuple[int, int, int]:
        """Device and inode: equal for two mappings of one file or one shared memory object."""
        return (*self.device, self.inode)


@dataclass(frozen=True, kw_only=True)
class MappingUsage:
    """One entry of ``/proc/<pid>/smaps``: a mapping and the pages behind it."""

    mapping: MemoryMapping
    rss_bytes: int
    anonymous_bytes: int
    private_bytes: int
    """Clean and dirty pages that no other process maps (USS)."""
    hugetlb_bytes: int
    swap_bytes: int

    @property
    def held_bytes(self) -> int:
        """Everything that the mapping keeps: resident, huge (outside RSS) and swapped pages."""
        return self.rss_bytes + self.hugetlb_bytes + self.swap_bytes


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """One open file descriptor."""

    number: int
    path: str
    """Where ``/proc/<pid>/fd/<n>`` points to."""
    device: tuple[int, int]
    inode: int
    allocated_bytes: int
    """Blocks behind a regular file, else 0; for memory files these are pages in RAM."""

    @property
    def identity(self) -> tuple[int, int, int]:
        """Device and inode, comparable with :attr:`MemoryMapping.identity`."""
        return (*self.device, self.inode)


def decode_path(raw: bytes) -> str:
    """Decode a path so that it always has a UTF-8 form; unknown bytes become ``\\xNN``."""
    return raw.decode("utf-8", "backslashreplace")


def _malformed(where: str, got: bytes | str) -> HarnessError:
    return NotEvaluableError(
        "cannot understand a file of /proc",
        got=repr(got[:120]),
        where=where,
        hint="this needs a Linux kernel of version 5.4 or newer",
    )


def _ended(where: str) -> HarnessError:
    return NotEvaluableError(
        "the process has ended", expected="a live process with memory", where=where
    )


def _kilobytes(data: bytes) -> dict[bytes, int]:
    """``Name:  123 kB`` lines as bytes; other lines are left out."""
    sizes = {}
    for line in data.splitlines():
        name, _, rest = line.partition(b":")
        fields = rest.split()
        if len(fields) == 2 and fields[1] == b"kB" and fields[0].isdigit():
            sizes[name] = int(fields[0]) * 1024
    return sizes


def parse_status(data: bytes, *, where: str = "status") -> ProcessStatus:
    """Parse ``/proc/<pid>/status``; a process without memory has ended."""
    sizes = _kilobytes(data)
    if b"VmRSS" not in sizes:
        raise _ended(where)
    threads = re.search(rb"^Threads:\s+(\d+)$", data, re.MULTILINE)
    try:
        return ProcessStatus(
            vm_rss_bytes=sizes[b"VmRSS"],
            vm_hwm_bytes=sizes[b"VmHWM"],
            rss_anon_bytes=sizes[b"RssAnon"],
            rss_file_bytes=sizes[b"RssFile"],
            rss_shmem_bytes=sizes[b"RssShmem"],
            vm_swap_bytes=sizes[b"VmSwap"],
            num_threads=int(threads.group(1)) if threads else 1,
        )
    except KeyError as error:
        raise _malformed(where, f"no field {error}") from error


def parse_stat(data: bytes, *, where: str = "stat") -> ProcessStat:
    """Parse ``/proc/<pid>/stat``; the command name in it may hold spaces and parentheses."""
    fields = data[data.rfind(b")") + 1 :].split()
    try:
        return ProcessStat(
            state=fields[0].decode("ascii"),
            minor_faults=int(fields[7]),
            major_faults=int(fields[9]),
            start_ticks=int(fields[19]),
        )
    except (IndexError, ValueError) as error:
        raise _malformed(where, data) from error


def _mapping(line: bytes) -> MemoryMapping | None:
    match = _HEADER.match(line)
    if match is None:
        return None
    start, end, permissions, offset, device, inode, path = match.groups()
    major, _, minor = device.partition(b":")
    return MemoryMapping(
        start=int(start, 16),
        end=int(end, 16),
        permissions=permissions.decode("ascii"),
        offset_bytes=int(offset, 16),
        device=(int(major, 16), int(minor, 16)),
        inode=int(inode),
        # A newline is the only byte of a path that the kernel escapes here.
        path=decode_path((path or b"").replace(rb"\012", b"\n")),
    )


def parse_maps(data: bytes, *, where: str = "maps") -> tuple[MemoryMapping, ...]:
    """Parse ``/proc/<pid>/maps``, in address order."""
    mappings = []
    for line in data.split(b"\n"):
        if line:
            mapping = _mapping(line)
            if mapping is None:
                raise _malformed(where, line)
            mappings.append(mapping)
    return tuple(mappings)


_USED_SIZES = frozenset(
    (
        *(b"Rss", b"Anonymous", b"Private_Clean", b"Private_Dirty"),
        *(b"Private_Hugetlb", b"Shared_Hugetlb", b"Swap"),
    )
)


def _usage(mapping: MemoryMapping, sizes: Mapping[bytes, int], where: str) -> MappingUsage:
    try:
        return MappingUsage(
            mapping=mapping,
            rss_bytes=sizes[b"Rss"],
            anonymous_bytes=sizes[b"Anonymous"],
            private_bytes=sizes[b"Private_Clean"] + sizes[b"Private_Dirty"],
            hugetlb_bytes=sizes.get(b"Private_Hugetlb", 0) + sizes.get(b"Shared_Hugetlb", 0),
            swap_bytes=sizes[b"Swap"],
        )
    except KeyError as error:
        raise _malformed(where, f"no field {error}") from error


def parse_smaps(data: bytes, *, where: str = "smaps") -> tuple[MappingUsage, ...]:
    """Parse ``/proc/<pid>/smaps``, in address order."""
    return tuple(_usages(data, where))


def _usages(data: bytes, where: str) -> Iterator[MappingUsage]:
    mapping: MemoryMapping | None = None
    sizes: dict[bytes, int] = {}
    for line in data.split(b"\n"):
        # A field's name begins with a capital, an address does not. Few of the fields are used.
        name = line.partition(b":")[0] if b"A" <= line[:1] <= b"Z" else None
        if name in _USED_SIZES and mapping is not None:
            fields = line.split()
            if len(fields) == 3 and fields[2] == b"kB" and fields[1].isdigit():
                sizes[name] = int(fields[1]) * 1024
        elif name is None and line and (header := _mapping(line)) is not None:
            if mapping is not None:
                yield _usage(mapping, sizes, where)
            mapping, sizes = header, {}
        elif line and mapping is None:
            raise _malformed(where, line)
    if mapping is not None:
        yield _usage(mapping, sizes, where)


def _read(pid: int, name: str, proc: Path) -> tuple[bytes, str]:
    path = proc / str(pid) / name
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PROC_FILE_BYTES + 1)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise _ended(str(path)) from error
    except OSError as error:
        raise NotEvaluableError(
            "cannot read a process's memory map",
            got=str(error),
            where=str(path),
            hint="run as the same user, where /proc is mounted and not hidden",
        ) from error
    if len(data) > MAX_PROC_FILE_BYTES:
        raise _malformed(str(path), f"more than {MAX_PROC_FILE_BYTES} bytes")
    return data, str(path)


def read_status(pid: int, *, proc: Path = PROC) -> ProcessStatus:
    """Memory and thread counts of a live process."""
    data, where = _read(pid, "status", proc)
    return parse_status(data, where=where)


def read_stat(pid: int, *, proc: Path = PROC) -> ProcessStat:
    """Counters of a process; also readable while it waits to be reaped."""
    data, where = _read(pid, "stat", proc)
    return parse_stat(data, where=where)


def process_identity(pid: int, *, proc: Path = PROC) -> dict[str, int]:
    """What names one process for good, as the columns of tables: its number and its start."""
    return {"process_id": pid, "start_ticks": read_stat(pid, proc=proc).start_ticks}


def read_maps(pid: int, *, proc: Path = PROC) -> tuple[MemoryMapping, ...]:
    """Mappings of a live process, in address order."""
    data, where = _read(pid, "maps", proc)
    if not data:
        raise _ended(where)
    return parse_maps(data, where=where)


def read_smaps(pid: int, *, proc: Path = PROC) -> tuple[MappingUsage, ...]:
    """Mappings of a live process with their pages, in address order."""
    data, where = _read(pid, "smaps", proc)
    if not data:
        raise _ended(where)
    return parse_smaps(data, where=where)


def _descriptor(folder: Path, name: str) -> Descriptor | None:
    try:
        path = decode_path(os.fsencode(os.readlink(folder / name)))
    except OSError:  # closed since the listing
        return None
    try:
        status = os.stat(folder / name)
    except OSError:  # open, but on a file system that does not answer: its name still counts
        return Descriptor(number=int(name), path=path, device=(0, 0), inode=0, allocated_bytes=0)
    return Descriptor(
        number=int(name),
        path=path,
        device=(os.major(status.st_dev), os.minor(status.st_dev)),
        inode=status.st_ino,
        allocated_bytes=status.st_blocks * 512 if stat.S_ISREG(status.st_mode) else 0,
    )


def read_descriptors(pid: int, *, proc: Path = PROC) -> tuple[Descriptor, ...]:
    """Open descriptors of a live process, by number."""
    folder = proc / str(pid) / "fd"
    try:
        names = sorted(os.listdir(folder), key=int)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise _ended(str(folder)) from error
    except OSError as error:
        raise NotEvaluableError(
            "cannot list a process's descriptors", got=str(error), where=str(folder)
        ) from error
    return tuple(found for name in names if (found := _descriptor(folder, name)) is not None)


def read_swap_counters(*, proc: Path = PROC) -> tuple[int, int]:
    """Pages swapped in and out by the whole machine since boot (no per-process count exists)."""
    try:
        data = (proc / "vmstat").read_bytes()
    except OSError:  # hidden in some containers
        return 0, 0
    counts = dict(line.split()[:2] for line in data.splitlines() if len(line.split()) == 2)
    return int(counts.get(b"pswpin", 0)), int(counts.get(b"pswpout", 0))

"""Bounded reading: only planned tensors, each once, straight into the caller's memory, hashed.

The reader holds at most one open descriptor and no tensor bytes of its own. It knows the planned
manifest rows it was given and the files' headers, and nothing of plans or models. A tensor is read
and hashed by one thread, several tensors by as many threads as the reader is given.
"""

import hashlib
import os
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.checkpoint.entries import (
    ReadEntry,
    entry_problems,
    header_problems,
    writable_bytes,
)
from harness.checkpoint.files import (
    FileIdentity,
    identity,
    open_regular,
    problems_error,
    read_exactly,
    resolve_under,
    shard_problem,
)
from harness.checkpoint.header import read_header_from
from harness.errors import CheckpointError, ExitCode, HarnessError
from harness.team import Team

__all__ = ["BoundedReader", "ReadEntry", "Reading", "SourceAccessError"]

_DIGEST_BYTES = 32
PIECE_BYTES = 256 << 10
"""Read and then hashed at a time: small, so that the hash finds the bytes still in cache."""


class SourceAccessError(HarnessError):
    """The checkpoint was read after its source was sealed."""

    exit_code = ExitCode.FAILED


@dataclass
class _Shard:
    """One file: where it is, what it was at open, and how often it was opened and closed."""

    path: Path
    num_opens: int = 0
    num_closes: int = 0
    num_left: int = 0
    seen: FileIdentity | None = None
    data_offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One tensor whose bytes are on their way into the caller's memory."""

    entry: ReadEntry
    digest: "Future[bytes]"


class BoundedReader:
    """Reads planned tensors of one checkpoint folder.

    Every shard's header is validated when the reader is made, and each planned tensor must agree
    with it. Afterwards a shard is opened for a run of reads from it, and closed when another shard
    is read, when its last planned tensor was read, or on :meth:`close`.

    One thread may ask; those of the team read and hash.

    Raises:
        CheckpointError: With every disagreement between entries, names, links and headers.
    """

    def __init__(self, root: Path, entries: Sequence[ReadEntry], team: Team | None = None) -> None:
        self._root = root
        self._team = Team() if team is None else team
        self._readings: dict[str, Reading] = {}
        self._entries = {entry.key: entry for entry in entries}
        self._shards: dict[str, _Shard] = {}
        self._offsets: dict[str, int] = {}
        # Room for every answer from the start: a reader that grew beside state of gigabytes would
        # be pages that no plan knows.
        self._index = {key: index for index, key in enumerate(self._entries)}
        self._digests = bytearray(_DIGEST_BYTES * len(self._index))
        self._num_fetches = array("Q", bytes(8 * len(self._index)))
        self._open: tuple[_Shard, int] | None = None
        self._sealed = False
        self._num_refused = 0
        problems = entry_problems(entries)
        for name in sorted({entry.file for entry in entries}):
            problems.extend(self._check_shard(name))
        if problems:
            raise problems_error(
                "the checkpoint does not hold what is to be read", problems, where=str(root)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def num_refused(self) -> int:
        """Reads that were refused because the source was sealed."""
        return self._num_refused

    @property
    def is_sealed(self) -> bool:
        """Whether :meth:`seal` was called."""
        return self._sealed

    def read_into(self, key: str, buffer: memoryview) -> None:
        """Begin to read a tensor, and finish: see :meth:`begin` and :meth:`finish`."""
        self.finish(self.begin(key, buffer))

    def begin(self, key: str, buffer: memoryview) -> Reading:
        """Have ``buffer`` filled with the tensor's bytes, which count once this was finished.

        Args:
            key: A planned key that has not been read yet.
            buffer: Writable, contiguous, exactly the tensor's bytes long. Its content is undefined
                until the reading has finished, and after an error.

        Raises:
            SourceAccessError: When the source is sealed.
            CheckpointError: On an unplanned key, a second read, a buffer of another size, or a
                file that changed since it was opened.
        """
        if self._sealed:
            self._num_refused += 1
            raise SourceAccessError(
                "the checkpoint was read after its source was sealed",
                expected="no source access after release",
                got=f"read of {key!r}",
                where=str(self._root),
            )
        entry = self._admit(key)
        target = writable_bytes(entry, buffer)
        shard = self._shards[entry.file]
        try:
            descriptor = self._descriptor(shard)
            self._check_unchanged(shard, descriptor, entry)
        except BaseException:
            target.release()
            self.close()
            raise
        fill = partial(self._fill, shard, descriptor, entry)
        reading = Reading(entry=entry, digest=self._team.begin(fill, target))
        self._readings[key] = reading
        return reading

    def finish(self, reading: Reading) -> None:
        """Wait until a tensor was read, and check its pinned digest.

        After an error, no other reading goes on either.

        Raises:
            CheckpointError: When the file changed, or ends before the tensor does, or the digest
                is not the pinned one.
        """
        entry = reading.entry
        try:
            digest = reading.digest.result()
            self._num_fetches[self._index[entry.key]] += 1
            _check_pinned(entry, digest)
        except BaseException:
            self.close()
            raise
        finally:
            self._readings.pop(entry.key, None)
        at = _DIGEST_BYTES * self._index[entry.key]
        self._digests[at : at + _DIGEST_BYTES] = digest
        shard = self._shards[entry.file]
        shard.num_left -= 1
        if shard.num_left == 0 and self._open is not None and self._open[0] is shard:
            self.close()

    def close(self) -> None:
        """Let what was begun end, and close the open shard. Reading may go on afterwards."""
        wait([reading.digest for reading in self._readings.values()])
        if self._open is not None:
            shard, descriptor = self._open
            self._open = None
            os.close(descriptor)
            shard.num_closes += 1

    def seal(self) -> None:
        """Close, and refuse and count every read from now on."""
        self.close()
        self._sealed = True

    def records(self) -> list[dict[str, Any]]:
        """Rows of the table ``fetches``: one per key read, sorted by key.

        ``num_fetches`` also counts attempts to read a tensor again, which were refused.
        """
        return [
            {
                "key": key,
                "file": self._entries[key].file,
                "dtype": self._entries[key].dtype,
                "shape": list(self._entries[key].shape),
                "bytes": self._entries[key].num_bytes,
                "digest": "sha256:" + self._digests[at : at + _DIGEST_BYTES].hex(),
                "num_fetches": self._num_fetches[index],
            }
            for key, index, at in self._fetched()
        ]

    def source_rows(self) -> list[dict[str, Any]]:
        """Rows of the table ``sources``: one per file, sorted, its header's reading included."""
        return [
            {
                "file": name,
                "size_bytes": 0 if shard.seen is None else shard.seen.size_bytes,
                "num_opens": shard.num_opens,
                "num_closes": shard.num_closes,
            }
            for name, shard in sorted(self._shards.items())
        ]

    def unfetched(self) -> tuple[str, ...]:
        """Planned keys that were never read to their end, sorted."""
        fetched = {key for key, _, _ in self._fetched()}
        return tuple(sorted(self._entries.keys() - fetched))

    def _fetched(self) -> Iterator[tuple[str, int, int]]:
        """Keys read to their end, sorted; each with its index and the place of its digest."""
        for key, index in sorted(self._index.items()):
            at = _DIGEST_BYTES * index
            if any(self._digests[at : at + _DIGEST_BYTES]):
                yield key, index, at

    def _check_shard(self, name: str) -> list[str]:
        try:
            shard = _Shard(path=resolve_under(self._root, name))
            self._shards[name] = shard
            with self._opened(shard) as descriptor:
                shard.seen = identity(descriptor)
                header = read_header_from(descriptor, where=name)
        except CheckpointError as error:
            return [shard_problem(name, error)]
        shard.data_offset = header.data_offset
        planned = [entry for entry in self._entries.values() if entry.file == name]
        shard.num_left = len(planned)
        problems = []
        for entry in planned:
            problems.extend(header_problems(entry, header))
            found = header.entries.get(entry.key)
            if found is not None:
                self._offsets[entry.key] = header.data_offset + found.begin
        return problems

    @contextmanager
    def _opened(self, shard: _Shard) -> Iterator[int]:
        descriptor = open_regular(shard.path)
        shard.num_opens += 1
        try:
            yield descriptor
        finally:
            os.close(descriptor)
            shard.num_closes += 1

    def _admit(self, key: str) -> ReadEntry:
        entry = self._entries.get(key)
        if entry is None:
            raise CheckpointError(
                f"tensor {key!r} is not planned",
                expected=f"one of the {len(self._entries)} planned keys",
                where=str(self._root),
            )
        index = self._index[key]
        was_read = any(self._digests[_DIGEST_BYTES * index : _DIGEST_BYTES * (index + 1)])
        if was_read or key in self._readings:
            self._num_fetches[index] += 1
            raise CheckpointError(
                f"tensor {key!r} was already read",
                expected="one read of each tensor",
                got=f"read number {self._num_fetches[index]}",
                where=entry.file,
            )
        return entry

    def _descriptor(self, shard: _Shard) -> int:
        if self._open is not None and self._open[0] is not shard:
            self.close()
        if self._open is None:
            descriptor = open_regular(shard.path)
            shard.num_opens += 1
            self._open = (shard, descriptor)
        return self._open[1]

    def _fill(self, shard: _Shard, descriptor: int, entry: ReadEntry, target: memoryview) -> bytes:
        """Read and hash a tensor, on a thread of the team; lets go of ``target``."""
        offset = self._offsets[entry.key]
        sha256 = hashlib.sha256()
        with target:
            for begin in range(0, entry.num_bytes, PIECE_BYTES):
                with target[begin : begin + PIECE_BYTES] as piece:
                    count = read_exactly(descriptor, piece, offset + begin)
                    if count < len(piece):
                        raise CheckpointError(
                            f"tensor {entry.key!r} ends early",
                            expected=f"{entry.num_bytes} bytes",
                            got=f"{begin + count} bytes",
                            where=entry.file,
                            hint="the file was truncated while it was read",
                        )
                    sha256.update(piece)
        self._check_unchanged(shard, descriptor, entry)
        return sha256.digest()

    def _check_unchanged(self, shard: _Shard, descriptor: int, entry: ReadEntry) -> None:
        now = identity(descriptor)
        if now != shard.seen:
            raise CheckpointError(
                "the file changed since the reader was opened",
                expected=str(shard.seen),
                got=str(now),
                where=entry.file,
            )


def _check_pinned(entry: ReadEntry, digest: bytes) -> None:
    found = "sha256:" + digest.hex()
    if entry.sha256 is not None and found != entry.sha256:
        raise CheckpointError(
            f"tensor {entry.key!r} is not the pinned one",
            expected=entry.sha256,
            got=found,
            where=entry.file,
            hint="fetch the checkpoint that the plan pins, or freeze a plan for this one",
        )

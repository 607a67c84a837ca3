"""Planned tensors: what may be read, and how an entry can disagree with a header or a buffer."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.canonical import is_digest
from harness.checkpoint.header import Header
from harness.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class ReadEntry:
    """One tensor that may be read."""

    key: str
    file: str
    dtype: str
    """torch's name."""
    shape: tuple[int, ...]
    num_bytes: int
    """On disk."""
    sha256: str | None
    """Pinned digest (``sha256:<hex>``), or ``None`` when the plan pins none."""


def entry_problems(entries: Sequence[ReadEntry]) -> list[str]:
    """What is wrong with the entries by themselves."""
    problems = []
    seen: set[str] = set()
    for entry in entries:
        if entry.key in seen:
            problems.append(f"{entry.key!r}: planned more than once")
        seen.add(entry.key)
        if entry.sha256 is not None and not (
            is_digest(entry.sha256) and entry.sha256.startswith("sha256:")
        ):
            problems.append(f"{entry.key!r}: pinned digest {entry.sha256!r} is not sha256:<hex>")
    return problems


def header_problems(entry: ReadEntry, header: Header) -> list[str]:
    """Where an entry disagrees with the header of its file."""
    found = header.entries.get(entry.key)
    if found is None:
        return [f"{entry.key!r}: not in {entry.file}"]
    return [
        f"{entry.key!r}: planned {what} {planned}, {entry.file} has {actual}"
        for what, planned, actual in (
            ("dtype", entry.dtype, found.dtype),
            ("shape", entry.shape, found.shape),
            ("bytes", entry.num_bytes, found.num_bytes),
        )
        if planned != actual
    ]


def writable_bytes(entry: ReadEntry, buffer: memoryview) -> memoryview:
    """The buffer as writable bytes, when it is exactly the tensor's size.

    Raises:
        CheckpointError: When it is read-only, strided, or of another size.
    """
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous or view.nbytes != entry.num_bytes:
        raise CheckpointError(
            f"buffer for tensor {entry.key!r} does not fit",
            expected=f"{entry.num_bytes} writable contiguous bytes",
            got=f"{view.nbytes} bytes, {'read-only' if view.readonly else 'writable'}, "
            f"{'contiguous' if view.c_contiguous else 'strided'}",
            where=entry.file,
        )
    # A view with a zero in its shape cannot be cast; there is nothing to write then.
    return view.cast("B") if entry.num_bytes else memoryview(bytearray())

"""Bytes of each logical state, stored and resident, as a tensor manifest adds up to them.

Calculated from the checkpoint's headers and the layout's arithmetic; nothing here was measured in
a memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.plan.manifest import ManifestEntry

LABEL = "calculated"
"""How the figures came to be."""


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """One immutable state's tensors, in sum."""

    logical_state_id: str
    num_tensors: int
    source_bytes: int
    """Bytes in the checkpoint's files."""
    resident_bytes: int
    """Bytes in the final residency; more than stored where a tensor fills several places."""


def bytes_by_state(manifest: Iterable[ManifestEntry]) -> tuple[StateBytes, ...]:
    """Sum up the entries of each state, sorted by its id."""
    entries: dict[str, list[ManifestEntry]] = {}
    for entry in manifest:
        entries.setdefault(entry.logical_state_id, []).append(entry)
    return tuple(
        StateBytes(
            logical_state_id=state_id,
            num_tensors=len(own),
            source_bytes=sum(entry.source_bytes for entry in own),
            resident_bytes=sum(entry.expected_bytes for entry in own),
        )
        for state_id, own in sorted(entries.items())
    )

"""Sentinels that another process counts: pages, descriptors and mappings, as the witness sees them.

Knows how to plant a canary that only ``/proc`` can show; knows no plan and no verdict.
"""

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.measure.readings import WitnessReading
from harness.realize.sentinels import CANARY_BYTES, FunctionSentinel, Sentinel

Probe = Callable[[], WitnessReading]
"""Asks the witness for a reading that is not written to its tables."""


def unplanned_pages(probe: Probe, allowance_bytes: int) -> Sentinel:
    """Bytes of pages beyond the baseline, the declared arenas and the plan's allowance."""

    @contextmanager
    def plant() -> Iterator[None]:
        # More than the allowance, whatever of it is in use; every page is written, and so resident.
        mirror = bytearray(os.urandom(4096) * ((allowance_bytes + CANARY_BYTES) // 4096))
        try:
            yield
        finally:
            mirror.clear()
            del mirror

    return FunctionSentinel(
        name="unplanned_pages",
        counter=lambda: max(0, probe().unplanned_bytes - allowance_bytes),
        plant=plant,
    )


def checkpoint_descriptors(probe: Probe, checkpoint_file: Path) -> Sentinel:
    """Open descriptors of checkpoint files."""

    @contextmanager
    def plant() -> Iterator[None]:
        descriptor = os.open(checkpoint_file, os.O_RDONLY)
        try:
            yield
        finally:
            os.close(descriptor)

    return FunctionSentinel(
        name="checkpoint_descriptors",
        counter=lambda: len(probe().checkpoint_descriptors),
        plant=plant,
    )


def checkpoint_mappings(probe: Probe, checkpoint_file: Path) -> Sentinel:
    """Mapped checkpoint files."""

    @contextmanager
    def plant() -> Iterator[None]:
        descriptor = os.open(checkpoint_file, os.O_RDONLY)
        try:
            mapping = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        try:
            yield
        finally:
            mapping.close()

    return FunctionSentinel(
        name="checkpoint_mappings",
        counter=lambda: len(probe().checkpoint_mappings),
        plant=plant,
    )

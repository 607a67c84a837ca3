"""The producer's own instruments: memories, ledger, witness, sentinels and the lifecycle log.

Gathers rows at each lifecycle point; judges nothing.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from harness.measure.clock import monotonic_ns
from harness.measure.proc import process_identity
from harness.measure.readings import DeclaredArena, WitnessReading
from harness.measure.witness_client import WitnessClient
from harness.plan.records import ACCELERATOR_VRAM
from harness.realize.sentinels import Sentinel
from harness.realize.witnessed import (
    checkpoint_descriptors,
    checkpoint_mappings,
    unplanned_pages,
)
from harness.run.device_ledger import DeviceLedger
from harness.state.accounting import TensorAccounting
from harness.state.arena import Arena, Memory
from harness.state.driver import Driver

Row = dict[str, object]


class Instruments:
    """Rows of ``ledger`` and ``lifecycle``, and the conversation with the witness."""

    def __init__(
        self, memories: Mapping[str, Memory], witness: WitnessClient, driver: Driver | None
    ) -> None:
        """Args: memories: by plan id; witness: of this process; driver: of the GPU, if one is."""
        self.memories = memories
        self.device_ledgers = [
            DeviceLedger(driver, resource_id)
            for resource_id, memory in memories.items()
            if driver is not None and memory.kind == ACCELERATOR_VRAM
        ]
        self._witness = witness
        self._accounting = TensorAccounting()
        self._declared: dict[str, tuple[str, Arena]] = {}
        self.ledger: list[Row] = []
        self.lifecycle: list[Row] = []
        self._process = process_identity(os.getpid())

    @property
    def accounting(self) -> TensorAccounting:
        """Live tensors outside arenas, against the baseline."""
        return self._accounting

    def declare(self, arenas: Mapping[str, Arena]) -> None:
        """Remember arenas for the witness; a released one stays declared, to be seen gone."""
        for identifier, arena in arenas.items():
            for resource_id, memory in self.memories.items():
                if any(held is arena for held in memory.arenas):
                    self._declared[identifier] = (resource_id, arena)

    def live_arenas(self) -> list[Arena]:
        """Every arena that some memory holds now, declared by the plan or not yet released."""
        return [arena for memory in self.memories.values() for arena in memory.arenas]

    def log(self, event: str) -> None:
        """Add one lifecycle event."""
        self.lifecycle.append(
            {
                "order": len(self.lifecycle),
                "event": event,
                "at_ns": monotonic_ns(),
                **self._process,
            }
        )

    def probe(self) -> WitnessReading:
        """Ask the witness for a reading that is not kept."""
        return self._read("probe", keep=False)

    def checkpoint(self, point: str) -> None:
        """Take the ledger and have the witness take its reading, after the heap is settled."""
        self.log(point)
        self._read(point, keep=True)
        for ledger in self.device_ledgers:
            ledger.read(point, {name: arena for name, (_, arena) in self._declared.items()})
        unplanned = self._accounting.unplanned_bytes(self.live_arenas())
        for resource_id, memory in self.memories.items():
            self.ledger.append(
                {
                    "point": point,
                    "memory_resource_id": resource_id,
                    "requested_bytes": memory.requested_bytes,
                    "allocated_bytes": memory.allocated_bytes,
                    "peak_allocated_bytes": memory.peak_allocated_bytes,
                    "capacity_bytes": memory.capacity_bytes,
                    "num_arenas": len(memory.arenas),
                    # A tensor outside every arena lies in the process's own memory.
                    "unplanned_tensor_bytes": unplanned if memory.kind == "system-ram" else None,
                }
            )

    def witnessed(self, checkpoint_file: Path, allowance_bytes: int) -> list[Sentinel]:
        """The sentinels that the witness counts."""
        return [
            unplanned_pages(self.probe, allowance_bytes),
            checkpoint_descriptors(self.probe, checkpoint_file),
            checkpoint_mappings(self.probe, checkpoint_file),
        ]

    def _read(self, point: str, *, keep: bool) -> WitnessReading:
        declared = [
            DeclaredArena(
                materialization_id=identifier,
                memory_resource_id=resource_id,
                address=arena.address,
                length=arena.allocated_bytes,
            )
            for identifier, (resource_id, arena) in self._declared.items()
            # Of a device's own memory a process's pages show nothing.
            if self.memories[resource_id].kind != ACCELERATOR_VRAM
        ]
        return self._witness.checkpoint(point, declared, keep=keep)

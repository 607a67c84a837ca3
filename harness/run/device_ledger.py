"""What a GPU's allocator says at each lifecycle point: arenas, everything else, and the peak.

Rows of ``device_arenas`` and ``device_memory``, read from the allocator's snapshot; judges nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict

from harness.state.arena import Arena
from harness.state.device_blocks import DeviceBacking
from harness.state.driver import Driver

Row = dict[str, object]


class DeviceLedger:
    """Reads one GPU's allocator."""

    def __init__(self, driver: Driver, resource_id: str) -> None:
        """Args: driver: of the GPU; resource_id: its memory, as the plan calls it."""
        self._driver = driver
        self._resource_id = resource_id
        self.arena_rows: list[Row] = []
        self.memory_rows: list[Row] = []

    def read(self, point: str, arenas: Mapping[str, Arena]) -> None:
        """Add the rows of one point.

        Args:
            point: Its name.
            arenas: By materialization id; those of another memory are passed over.
        """
        # What is cached and unused is nobody's; what stays is.
        self._driver.give_back()
        place: Row = {"point": point, "memory_resource_id": self._resource_id}
        block_bytes = segment_bytes = 0
        for identifier, arena in arenas.items():
            if isinstance(arena.backing, DeviceBacking) and arena.is_mapped:
                taken = arena.backing.measured()
                self.arena_rows.append({**place, "materialization_id": identifier, **asdict(taken)})
                block_bytes += taken.block_bytes
                segment_bytes += taken.segment_bytes
        segments = self._driver.segments()
        self.memory_rows.append(
            place
            | {
                "other_block_bytes": sum(each.block_bytes for each in segments) - block_bytes,
                "other_segment_bytes": sum(each.segment_bytes for each in segments) - segment_bytes,
                "peak_block_bytes": self._driver.peak_block_bytes(),
                "used_bytes": self._driver.used_bytes(),
            }
        )

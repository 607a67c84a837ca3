"""The device that is looked at: its clock, its limits, and recording what runs on it.

On the host, where a dry run looks at it, the same calls are answered by the host.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from harness.state.backing import Blocks, HostPages
from harness.state.device_blocks import DeviceBlocks
from harness.state.driver import CudaDriver
from harness.state.recording import HostRecording, Recording

COPY_BYTES = {"cuda": 1 << 30, "cpu": 64 << 20}
MATRIX_SIZE = {"cuda": 8192, "cpu": 512}
MIN_FLUSHED_BYTES = 128 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What this device reached in this run."""

    copy_bytes_per_sec: float
    """Read and written, of a plain copy."""
    matrix_flop_per_sec: float
    """Of a bfloat16 product of square matrices."""


class Device:
    """A CUDA device, or the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._driver = None
        self._flushed: torch.Tensor | None = None
        if device.type == "cuda":
            self._driver = CudaDriver(str(torch.cuda.get_device_properties(device).uuid))

    def description(self) -> str:
        """What it is."""
        return "the host" if self._driver is None else self._driver.description()

    def blocks(self) -> Blocks:
        """Where blocks of its memory come from."""
        return HostPages() if self._driver is None else DeviceBlocks(self._driver)

    def give_back(self) -> None:
        """Return memory that nothing uses any more."""
        if self._driver is not None:
            self._driver.give_back()

    def synchronize(self) -> None:
        """Wait for all that was started."""
        if self._driver is not None:
            self._driver.synchronize()

    def record(self, work: Callable[[], None]) -> Recording:
        """Record work that is then replayed: a graph, where there are graphs."""
        return HostRecording(work) if self._driver is None else self._driver.record(work)

    def seconds(self, work: Callable[[], object], repeats: int) -> float:
        """Median seconds of one call as its caller sees it, after one that is not counted."""
        work()
        found = []
        for _ in range(repeats):
            self.synchronize()
            began = time.perf_counter()
            work()
            self.synchronize()
            found.append(time.perf_counter() - began)
        return statistics.median(found)

    def launch_seconds(self, work: Callable[[], object], repeats: int) -> float:
        """Median seconds of the device's own work for a call, with nothing in its caches.

        A recording is replayed between two events, behind a write that fills the caches, so that
        neither the host nor a check is in it. Work that waits for the device cannot be recorded.
        """
        if self._driver is None:
            return self.seconds(work, repeats)
        work()

        def launch() -> None:
            work()

        recording = self.record(launch)
        flushed, events = self._to_flush(), []
        for _ in range(repeats + 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flushed.zero_()
            begin.record()
            recording.replay()
            end.record()
            events.append((begin, end))
        self.synchronize()
        return statistics.median(begin.elapsed_time(end) for begin, end in events[1:]) / 1e3

    def _to_flush(self) -> torch.Tensor:
        if self._flushed is None:
            properties: Any = torch.cuda.get_device_properties(self.device)
            size = max(MIN_FLUSHED_BYTES, 2 * properties.L2_cache_size)
            self._flushed = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._flushed

    def limits(self, repeats: int) -> Limits:
        """Measure them."""
        kind = self.device.type
        source = torch.ones(COPY_BYTES[kind], dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        copied = self.seconds(lambda: target.copy_(source), repeats)
        size = MATRIX_SIZE[kind]
        a = torch.randn(size, size, device=self.device).bfloat16()
        product = self.seconds(lambda: a @ a, repeats)
        return Limits(
            copy_bytes_per_sec=2 * COPY_BYTES[kind] / copied,
            matrix_flop_per_sec=2 * size**3 / product,
        )

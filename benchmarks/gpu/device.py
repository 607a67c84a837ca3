"""The device that is looked at: its clock, its limits, and recording what runs on it.

On the host, where a dry run looks at it, the same calls are answered by the host.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.state.driver import CudaDriver
from harness.state.recording import HostRecording, Recording

COPY_BYTES = {"cuda": 1 << 30, "cpu": 64 << 20}
MATRIX_SIZE = {"cuda": 8192, "cpu": 512}


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
        if device.type == "cuda":
            self._driver = CudaDriver(str(torch.cuda.get_device_properties(device).uuid))

    def description(self) -> str:
        """What it is."""
        return "the host" if self._driver is None else self._driver.description()

    def synchronize(self) -> None:
        """Wait for all that was started."""
        if self._driver is not None:
            self._driver.synchronize()

    def record(self, work: Callable[[], None]) -> Recording:
        """Record work that is then replayed: a graph, where there are graphs."""
        return HostRecording(work) if self._driver is None else self._driver.record(work)

    def seconds(self, work: Callable[[], object], repeats: int) -> float:
        """Median seconds of one call, after one that is not counted."""
        work()
        found = []
        for _ in range(repeats):
            self.synchronize()
            began = time.perf_counter()
            work()
            self.synchronize()
            found.append(time.perf_counter() - began)
        return statistics.median(found)

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

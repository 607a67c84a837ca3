"""The one seam to a GPU: every call that reaches CUDA's driver or its allocator, and nothing else.

All that is decided about memory, order or bytes is decided above it and runs on any machine with
another :class:`Driver`; what is here is only executed where there is a GPU. Importing it reaches
no GPU.
"""

import errno
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from harness.errors import NotEvaluableError, ResourceError
from harness.state.recording import Recording

_cuda: Any = torch.cuda
"""Some of its functions have no types."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One piece of device memory that the allocator took from the driver."""

    address: int
    segment_bytes: int
    block_bytes: int
    """Of its blocks that are in use."""
    requested_bytes: int
    """What was asked for, of those blocks."""


class Driver(Protocol):
    """What is asked of one GPU."""

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""

    def description(self) -> str:
        """Architecture and runtime, as bits may depend on them."""

    def make_pool(self) -> Any:
        """A pool of the allocator that shares no segment with another."""

    def zeros(self, pool: Any, num_bytes: int) -> torch.Tensor:
        """Take uint8 [num_bytes] of zeros from a pool.

        Raises:
            OSError: When there is no room.
        """

    def segments(self, pool: Any = None) -> Sequence[Segment]:
        """The allocator's segments, of one pool or of all, from its snapshot."""

    def give_back(self) -> None:
        """Return segments without a block in use to the driver."""

    def peak_block_bytes(self) -> int:
        """Most bytes of blocks in use at once since the last call."""

    def used_bytes(self) -> int:
        """Bytes of the device's memory in use by anyone."""

    def synchronize(self) -> None:
        """Wait for everything that was started."""

    def pin(self, address: int, num_bytes: int) -> None:
        """Lock host pages, so that copies from them can run beside other work."""

    def unpin(self, address: int) -> None:
        """Unlock them."""

    def sending(self) -> AbstractContextManager[None]:
        """Work started inside runs on a stream of its own, after what was started before."""

    def sent(self) -> Callable[[], None]:
        """Mark what is sent so far; the answer waits, on the host, until that has arrived."""

    def join(self) -> None:
        """Let all later work wait for what was sent."""

    def record(self, work: Callable[[], None]) -> Recording:
        """Record the launches of ``work`` as a graph, which allocates in a pool of its own."""


class CudaDriver:
    """One CUDA device of this process."""

    def __init__(self, uuid: str) -> None:
        """Find the visible device with a UUID, as the system's management library writes it.

        Raises:
            NotEvaluableError: When this process sees no such device.
        """
        visible = _visible()
        if _number(uuid) not in visible:
            raise NotEvaluableError(
                "the bound GPU is not visible to this process",
                expected=uuid,
                got=", ".join(visible) or "no CUDA device",
                hint="look at CUDA_VISIBLE_DEVICES, and that torch is built for this driver",
            )
        self.device = torch.device("cuda", visible.index(_number(uuid)))
        torch.cuda.set_device(self.device)
        self._side = _cuda.Stream(self.device)
        self._graph_pool = torch.cuda.graph_pool_handle()
        self._kept: Recording | None = None

    def description(self) -> str:
        """Name, compute capability, and the runtime that torch was built with."""
        major, minor = torch.cuda.get_device_capability(self.device)
        name = torch.cuda.get_device_name(self.device)
        return f"sm_{major}{minor} {name}; cuda {torch.version.cuda}"

    def make_pool(self) -> Any:
        """See :class:`Driver`."""
        return torch.cuda.MemPool()

    def zeros(self, pool: Any, num_bytes: int) -> torch.Tensor:
        """See :class:`Driver`."""
        try:
            with torch.cuda.use_mem_pool(pool, self.device):
                return torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError as error:
            text = str(error).partition(". ")[0]
            raise OSError(errno.ENOMEM, text) from error

    def segments(self, pool: Any = None) -> Sequence[Segment]:
        """See :class:`Driver`."""
        snapshot: Any = _cuda.memory_snapshot
        found = snapshot() if pool is None else snapshot(pool.id)
        return [
            Segment(
                address=segment["address"],
                segment_bytes=segment["total_size"],
                block_bytes=segment["active_size"],
                requested_bytes=segment["requested_size"],
            )
            for segment in found
            if segment["device"] == self.device.index
        ]

    def give_back(self) -> None:
        """See :class:`Driver`."""
        self.synchronize()
        torch.cuda.empty_cache()

    def peak_block_bytes(self) -> int:
        """See :class:`Driver`."""
        peak: int = torch.cuda.memory_stats(self.device)["active_bytes.all.peak"]
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak

    def used_bytes(self) -> int:
        """See :class:`Driver`."""
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free

    def synchronize(self) -> None:
        """See :class:`Driver`."""
        torch.cuda.synchronize(self.device)

    def pin(self, address: int, num_bytes: int) -> None:
        """See :class:`Driver`."""
        _require(_cuda.cudart().cudaHostRegister(address, num_bytes, 0), "pin host pages")

    def unpin(self, address: int) -> None:
        """See :class:`Driver`."""
        _require(_cuda.cudart().cudaHostUnregister(address), "unpin host pages")

    @contextmanager
    def sending(self) -> Iterator[None]:
        """See :class:`Driver`."""
        self._side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._side):
            yield

    def sent(self) -> Callable[[], None]:
        """See :class:`Driver`."""
        event: torch.cuda.Event = _cuda.Event()
        event.record(self._side)
        return lambda: event.synchronize()

    def join(self) -> None:
        """See :class:`Driver`."""
        torch.cuda.current_stream(self.device).wait_stream(self._side)

    def record(self, work: Callable[[], None]) -> Recording:
        """See :class:`Driver`."""
        if self._kept is None:
            # What graphs share (their pool, the generator's state) lives as long as one of them:
            # from the first on, so that it comes and goes with no state.
            self._kept = self._captured(lambda: None)
        return self._captured(work)

    def _captured(self, work: Callable[[], None]) -> Recording:
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            # The kept graph is empty on purpose.
            warnings.simplefilter("ignore")
            with torch.cuda.graph(graph, pool=self._graph_pool):
                work()
        return graph


def _visible() -> list[str]:
    if not torch.cuda.is_available():
        return []
    properties = (torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count()))
    return [_number(str(each.uuid)) for each in properties]


def _number(uuid: str) -> str:
    """torch writes the bare number; the management library says what it is the number of."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


def wait_for(tensor: torch.Tensor) -> None:
    """Wait until a tensor is computed, where it is computed beside the host's own work."""
    if tensor.device.type == "cuda":
        # Not for the whole device: what is on its way to another process may wait for that one.
        torch.cuda.current_stream(tensor.device).synchronize()


def _require(status: Any, what: str) -> None:
    if int(status) != 0:
        raise ResourceError(f"cannot {what}", got=f"CUDA error {int(status)}")

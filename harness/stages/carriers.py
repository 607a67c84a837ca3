"""How planes travel between neighbours: by the chain's own group, or by one between their GPUs.

    plane on the host: gloo, with everything else       plane on a GPU: NCCL, from device to device

Everything else that crosses is small, and goes by the chain's own group on the host. What is
decided about order, waits and ends is decided here and runs with any group of that form; only
:func:`nccl_group` needs a GPU. Knows planes as bytes.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore, Store, Work

from harness.errors import NotEvaluableError

TAG = 0
_POLL_S = 20e-6
"""Less than a plane takes; a thread that only looks would keep others from the interpreter."""


class Group(Protocol):
    """What is used of a process group between neighbours."""

    def send(self, tensors: list[torch.Tensor], to: int, tag: int, /) -> Work:
        """Begin to send."""

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int, /) -> Work:
        """Begin to receive."""

    def name(self) -> str:
        """Of the library behind it."""


class DeviceGroup(Group, Protocol):
    """What is used of a group between devices, besides."""

    def abort(self) -> None:
        """End everything that was begun, without asking anybody."""


class Pending(Protocol):
    """Something that was begun."""

    def wait(self, bound: timedelta, /) -> object:
        """Wait for its end.

        Raises:
            RuntimeError: When it fails, or takes longer.
        """


class Carrier(Protocol):
    """What carries the planes of one stage."""

    @property
    def name(self) -> str:
        """Of the library that does it."""

    def send(self, plane: torch.Tensor, to: int) -> Pending:
        """Begin to send a contiguous plane.

        Raises:
            RuntimeError: When it fails at once.
        """

    def receive(self, plane: torch.Tensor, source: int) -> Pending:
        """Begin to receive into a contiguous plane, whole.

        Raises:
            RuntimeError: When it fails at once.
        """

    def close(self) -> None:
        """End what is still on its way; nothing is sent afterwards."""


class HostCarrier:
    """Planes in the host's memory, by the group that carries everything else."""

    def __init__(self, group: Group) -> None:
        """Args: group: of all stages."""
        self.name = group.name()
        self._group = group

    def send(self, plane: torch.Tensor, to: int) -> Work:
        """See :class:`Carrier`."""
        return self._group.send([as_bytes(plane)], to, TAG)

    def receive(self, plane: torch.Tensor, source: int) -> Work:
        """See :class:`Carrier`."""
        return self._group.recv([as_bytes(plane)], source, TAG)

    def close(self) -> None:
        """See :class:`Carrier`; the group ends with its process."""


class DeviceCarrier:
    """Planes in the memory of GPUs, by a group of their own.

    The group itself bounds no wait: each is bounded by looking, and what outlasts its bound is
    aborted, since a transfer that nobody takes part in would hold the device for ever.
    """

    def __init__(self, group: DeviceGroup) -> None:
        """Args: group: of all stages, each with a device of its own."""
        self.name = group.name()
        self._group = group

    def send(self, plane: torch.Tensor, to: int) -> Pending:
        """See :class:`Carrier`."""
        return _Watched(self._group.send([as_bytes(plane)], to, TAG), self.close)

    def receive(self, plane: torch.Tensor, source: int) -> Pending:
        """See :class:`Carrier`."""
        return _Watched(self._group.recv([as_bytes(plane)], source, TAG), self.close)

    def close(self) -> None:
        """See :class:`Carrier`."""
        self._group.abort()


class _Watched:
    """Work of a device, looked at from the host until it is done."""

    def __init__(self, work: Work, abort: Callable[[], None]) -> None:
        self._work = work
        self._abort = abort

    def wait(self, bound: timedelta, /) -> object:
        deadline = time.monotonic() + bound.total_seconds()
        while not self._work.is_completed():
            if time.monotonic() >= deadline:
                self._abort()
                raise RuntimeError("not done in time")
            time.sleep(_POLL_S)
        # Failed work is done as well, and says so here; and later work on this device's stream
        # is ordered after it.
        return self._work.wait()


def nccl_group(store: Store, stage: int, num_stages: int, bound: timedelta) -> DeviceGroup:
    """A group between GPUs: the one place that needs them.

    Each pair of neighbours connects when its first plane crosses.

    Args:
        store: Over which the stages met.
        stage: Number of this one, from 0.
        num_stages: In the whole chain.
        bound: On the library's own waits, over the store.

    Raises:
        NotEvaluableError: When this build of torch has no NCCL.
    """
    library: Any = distributed
    if not library.is_nccl_available():
        raise NotEvaluableError(
            "planes cannot travel between GPUs here",
            expected="a build of torch with NCCL",
            got=torch.__version__,
            hint="install a build of torch for CUDA, or derive the plan without stages",
        )
    options = library.ProcessGroupNCCL.Options()
    options._timeout = bound
    options.global_ranks_in_group = list(range(num_stages))
    options.group_name = "planes"
    group: DeviceGroup = library.ProcessGroupNCCL(
        PrefixStore("planes", store), stage, num_stages, options
    )
    return group


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a contiguous tensor's bytes, since bits travel, not numbers."""
    return tensor.reshape(-1).view(torch.uint8)

"""Tensors between the stages of one chain: whole, in order, in bounded time.

Sends and receives tensors whose shape and dtype the receiver already knows. No object is ever
pickled, and no size comes from the wire. Knows nothing of what the tensors mean.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Protocol

import torch
from torch._C._distributed_c10d import Store, Work

from harness.measure.clock import monotonic_ns
from harness.stages.errors import PeerError

_TAG = 0


class Group(Protocol):
    """What is used of a process group."""

    def send(self, tensors: list[torch.Tensor], to: int, tag: int, /) -> Work:
        """Begin to send."""

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int, /) -> Work:
        """Begin to receive."""

    def allgather(self, gathered: list[list[torch.Tensor]], own: list[torch.Tensor], /) -> Work:
        """Begin to exchange one tensor with everybody."""


class Transport:
    """One stage's end of the chain, over a process group and the store that formed it."""

    def __init__(
        self,
        *,
        group: Group,
        store: Store,
        stage: int,
        num_stages: int,
        timeout_s: float,
    ) -> None:
        """Take over a formed group.

        Args:
            group: Of all stages; a rank is a stage's number.
            store: Kept alive as long as the group is.
            stage: This stage's number, from 0.
            num_stages: In the whole chain.
            timeout_s: Bound on each send and receive where no other is given.
        """
        self.stage = stage
        self.num_stages = num_stages
        self.timeout_s = timeout_s
        self._group = group
        self._store = store
        self._posted: dict[int, tuple[str, list[torch.Tensor], list[Work]]] = {}

    def send(
        self, tensor: torch.Tensor, to: int, what: str, *, timeout_s: float | None = None
    ) -> None:
        """Send a contiguous tensor's bytes; returns when the receiver has begun to take them.

        Raises:
            PeerError: When the stage is gone, or does not take it in time.
        """
        self.settle(to)
        data = [_as_bytes(tensor)]
        self._bounded(lambda: self._group.send(data, to, _TAG), to, f"take {what}", timeout_s)

    def post(self, tensors: Sequence[torch.Tensor], to: int, what: str) -> None:
        """Begin to send contiguous tensors, one after another, without waiting.

        What was posted to the stage before is waited for first, so that at most one frame is on
        its way to each; its tensors are kept until then, and must not change.

        Raises:
            PeerError: When the stage is gone, or does not take what was posted before in time.
        """
        self.settle(to)
        data = [_as_bytes(tensor) for tensor in tensors]
        works = [self._group.send([each], to, _TAG) for each in data]
        self._posted[to] = (what, data, works)

    def settle(self, to: int | None = None) -> None:
        """Wait until what was posted, to one stage or to all, is taken.

        Raises:
            PeerError: When a stage is gone, or does not take it in time.
        """
        for peer in [to] if to is not None else list(self._posted):
            what, _data, works = self._posted.pop(peer, ("", [], []))
            for work in works:
                self._bounded(partial(_same, work), peer, f"take {what}", None)

    def receive(
        self, tensor: torch.Tensor, source: int, what: str, *, timeout_s: float | None = None
    ) -> None:
        """Receive into a contiguous tensor, whole.

        Raises:
            PeerError: When the stage is gone, or does not send it in time.
        """
        data = [_as_bytes(tensor)]
        self._bounded(
            lambda: self._group.recv(data, source, _TAG), source, f"send {what}", timeout_s
        )

    def gather(self, tensor: torch.Tensor, what: str) -> list[torch.Tensor]:
        """The equally shaped tensor of every stage, in their order, this one's own included.

        Raises:
            PeerError: When one of them is gone, or does not take part in time.
        """
        gathered = [torch.zeros_like(tensor) for _ in range(self.num_stages)]
        self._bounded(
            lambda: self._group.allgather([gathered], [tensor]), None, f"send {what}", None
        )
        return gathered

    def _bounded(
        self,
        begin: Callable[[], Work],
        peer: int | None,
        act: str,
        timeout_s: float | None,
    ) -> None:
        bound_s = self.timeout_s if timeout_s is None else timeout_s
        began = monotonic_ns()
        try:
            begin().wait(timedelta(seconds=bound_s))
        except RuntimeError as error:
            # The library's texts hold addresses, and say no more than these two.
            is_silent = monotonic_ns() - began >= bound_s * 0.99e9
            who = "another stage" if peer is None else f"stage {peer}"
            raise PeerError(
                f"{who} did not {act}",
                expected=f"within {bound_s:g} s",
                got="nothing in that time" if is_silent else "its connection is lost",
                where=f"stage {self.stage}",
                hint="see how that stage ended: its own message names the reason",
            ) from error


def _same(work: Work) -> Work:
    return work


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a contiguous tensor's bytes, since bits travel, not numbers."""
    return tensor.reshape(-1).view(torch.uint8)

"""Tensors between the stages of one chain: whole, in order, in bounded time.

Sends and receives tensors whose shape and dtype the receiver already knows. No object is ever
pickled, and no size comes from the wire. Knows nothing of what the tensors mean.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Protocol

import torch
from torch._C._distributed_c10d import Store, Work

from harness.measure.clock import monotonic_ns
from harness.stages.carriers import TAG, Carrier, HostCarrier, Pending, as_bytes
from harness.stages.carriers import Group as Neighbours
from harness.stages.errors import PeerError


class Group(Neighbours, Protocol):
    """What is used of a process group on the host."""

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
        self._planes: Carrier = HostCarrier(group)
        self._posted: dict[int, tuple[str, Sequence[torch.Tensor], list[Pending]]] = {}

    @property
    def planes(self) -> str:
        """Name of the library that carries the planes."""
        return self._planes.name

    def carry(
        self,
        make: Callable[[Store], Carrier],
        device: torch.device,
        *,
        timeout_s: float,
    ) -> None:
        """Have planes carried by another carrier, which neighbours try at once.

        Args:
            make: Makes it, from the store over which the stages met.
            device: Where its planes are.
            timeout_s: Bound on each wait while neighbours connect.

        Raises:
            PeerError: When a neighbour does not take part, or another stage is in its place.
        """
        self._planes = make(self._store)
        what, before = "its first plane", self.stage - 1
        if self.stage > 0:
            heard = torch.zeros(1, dtype=torch.int64, device=device)
            self.receive_plane(heard, before, what, timeout_s=timeout_s)
            if int(heard) != before:
                raise PeerError(
                    "another stage carries a neighbour's planes",
                    expected=f"stage {before}",
                    got=f"stage {int(heard)}",
                    where=f"stage {self.stage}",
                )
        if self.stage < self.num_stages - 1:
            told = torch.full((1,), self.stage, dtype=torch.int64, device=device)
            to = self.stage + 1
            self._bounded(lambda: self._planes.send(told, to), to, f"take {what}", timeout_s)

    def finish(self) -> None:
        """Return when every stage has come here, and so has taken all that was sent to it.

        Raises:
            PeerError: When one of them is gone, or does not come in time.
        """
        self.settle()
        self.gather(torch.zeros(1, dtype=torch.uint8), "that it has taken everything")

    def close(self) -> None:
        """End what carries planes; nothing is sent afterwards."""
        self._planes.close()

    def send(
        self, tensor: torch.Tensor, to: int, what: str, *, timeout_s: float | None = None
    ) -> None:
        """Send a contiguous tensor's bytes; returns when the receiver has begun to take them.

        Raises:
            PeerError: When the stage is gone, or does not take it in time.
        """
        self.settle(to)
        data = [as_bytes(tensor)]
        self._bounded(lambda: self._group.send(data, to, TAG), to, f"take {what}", timeout_s)

    def post(self, tensors: tuple[torch.Tensor, torch.Tensor], to: int, what: str) -> None:
        """Begin to send a header and its plane, both contiguous, without waiting.

        What was posted to the stage before is waited for first, so that at most one frame is on
        its way to each; its tensors are kept until then, and must not change.

        Raises:
            PeerError: When the stage is gone, or does not take what was posted before in time.
        """
        self.settle(to)
        header, plane = tensors
        begun: list[Pending] = []
        with self._told(to, f"take {what}", self.timeout_s):
            begun.append(self._group.send([as_bytes(header)], to, TAG))
            begun.append(self._planes.send(plane, to))
        self._posted[to] = (what, tensors, begun)

    def settle(self, to: int | None = None) -> None:
        """Wait until what was posted, to one stage or to all, is taken.

        Raises:
            PeerError: When a stage is gone, or does not take it in time.
        """
        for peer in [to] if to is not None else list(self._posted):
            what, _tensors, begun = self._posted.pop(peer, ("", (), []))
            for each in begun:
                self._bounded(partial(_same, each), peer, f"take {what}", None)

    def receive(
        self, tensor: torch.Tensor, source: int, what: str, *, timeout_s: float | None = None
    ) -> None:
        """Receive into a contiguous tensor, whole.

        Raises:
            PeerError: When the stage is gone, or does not send it in time.
        """
        data = [as_bytes(tensor)]
        self._bounded(
            lambda: self._group.recv(data, source, TAG), source, f"send {what}", timeout_s
        )

    def receive_plane(
        self, plane: torch.Tensor, source: int, what: str, *, timeout_s: float | None = None
    ) -> None:
        """Receive into a contiguous plane, whole, where it is.

        Raises:
            PeerError: When the stage is gone, or does not send it in time.
        """
        self._bounded(
            lambda: self._planes.receive(plane, source), source, f"send {what}", timeout_s
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
        begin: Callable[[], Pending],
        peer: int | None,
        act: str,
        timeout_s: float | None,
    ) -> None:
        bound_s = self.timeout_s if timeout_s is None else timeout_s
        with self._told(peer, act, bound_s):
            begin().wait(timedelta(seconds=bound_s))

    @contextmanager
    def _told(self, peer: int | None, act: str, bound_s: float) -> Iterator[None]:
        """Say of whom what was waited for, and for how long, when that fails."""
        began = monotonic_ns()
        try:
            yield
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


def _same(pending: Pending) -> Pending:
    return pending

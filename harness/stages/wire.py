"""One stage's frames: what it sends and takes, in order, and what it notes of them.

A header goes before each tensor, and is compared before its tensor is received. Knows planes as
rows of numbers; no executor, no plan and no model.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.measure.clock import monotonic_ns
from harness.stages.frames import (
    KINDS,
    PLANE,
    TOKEN,
    Header,
    check_header,
    dtype_number,
    empty_header,
)
from harness.stages.transport import Transport


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """One frame that left or reached this stage, for comparison with the other side's."""

    direction: str
    """``sent`` or ``received``."""
    kind: str
    """``open``, ``restore``, ``plane`` or ``token``."""
    peer: int
    session: int
    sequence: int
    start_position: int
    num_rows: int
    dtype: str
    bytes: int
    digest: str | None
    """Of a plane, where digests are taken."""
    token: int | None


class Wire:
    """The frames of one stage with the others of its chain."""

    def __init__(
        self,
        transport: Transport,
        *,
        nonce: int,
        digest: Callable[[torch.Tensor], str] | None,
    ) -> None:
        """Send and take frames.

        Args:
            transport: Of this stage.
            nonce: Tells this run's frames from another's.
            digest: Of each plane that crosses, on both of its sides; ``None`` takes none.
        """
        self.crossings: list[Crossing] = []
        self.session = 0
        """Counts the openings of a run; the frames of one have its number."""
        self._transport = transport
        self._nonce = nonce
        self._digest = digest
        self._sequences: dict[tuple[str, int], int] = {}
        self._noted_ns = 0

    def send(
        self,
        kind: int,
        to: int,
        rows: torch.Tensor,
        at: int,
        what: str,
        timeout_s: float | None = None,
    ) -> None:
        """Send rows [R, W] that begin at a position; returns when they are being taken.

        Raises:
            PeerError: When the stage is gone, or does not take them in time.
        """
        rows = rows.contiguous()
        header = self._header(kind, "sent", to, rows, at)
        self._transport.send(header.pack(), to, what, timeout_s=timeout_s)
        if rows.numel():
            self._transport.send(rows, to, what, timeout_s=timeout_s)
        self._note("sent", to, header, rows)

    def post(self, to: int, plane: torch.Tensor, at: int, what: str) -> None:
        """Send a plane [R, H] without waiting for it to be taken: the next can be computed.

        Raises:
            PeerError: When the stage is gone, or does not take the frame before in time.
        """
        plane = plane.contiguous()
        header = self._header(PLANE, "sent", to, plane, at)
        self._transport.post((header.pack(), plane), to, what)
        self._note("sent", to, header, plane)

    def receive(
        self,
        kind: int,
        source: int,
        rows: torch.Tensor,
        at: int,
        what: str,
        timeout_s: float | None = None,
    ) -> None:
        """Receive what is due into ``rows`` [R, W]; nothing before its header was checked.

        Raises:
            PeerError: When the stage is gone, silent or out of turn.
        """
        header, received = self._header(kind, "received", source, rows, at), empty_header()
        self._transport.receive(received, source, what, timeout_s=timeout_s)
        check_header(received, header, sender=source, stage=self._transport.stage)
        if kind == PLANE:
            self._transport.receive_plane(rows, source, what, timeout_s=timeout_s)
        elif rows.numel():
            self._transport.receive(rows, source, what, timeout_s=timeout_s)
        self._note("received", source, header, rows)

    def settle(self) -> None:
        """Wait until everything that was posted is taken.

        Raises:
            PeerError: When another stage is gone, or does not take it in time.
        """
        self._transport.settle()

    def noted_ns(self) -> int:
        """Time that notes and digests took since this was last asked."""
        noted, self._noted_ns = self._noted_ns, 0
        return noted

    def _header(self, kind: int, direction: str, peer: int, rows: torch.Tensor, at: int) -> Header:
        key = (direction, peer)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
        return Header(
            kind=kind,
            nonce=self._nonce,
            session=self.session,
            sequence=sequence,
            start_position=at,
            num_rows=rows.shape[0],
            width=rows.shape[1],
            dtype=dtype_number(rows.dtype),
        )

    def _note(self, direction: str, peer: int, header: Header, rows: torch.Tensor) -> None:
        began = monotonic_ns()
        is_plane = header.kind == PLANE
        self.crossings.append(
            Crossing(
                direction=direction,
                kind=KINDS[header.kind],
                peer=peer,
                session=header.session,
                sequence=header.sequence,
                start_position=header.start_position,
                num_rows=header.num_rows,
                dtype=str(rows.dtype).removeprefix("torch."),
                bytes=rows.nbytes,
                digest=self._digest(rows) if self._digest is not None and is_plane else None,
                token=int(rows) if header.kind == TOKEN else None,
            )
        )
        self._noted_ns += monotonic_ns() - began

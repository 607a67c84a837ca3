"""One stage of a running chain: opens sessions and runs steps, in turn with its neighbours.

    open     stage 0 resets -> stage 1 resets -> ... -> the last resets -> stage 0 knows
    step     stage 0: token ids -> plane -> stage 1 -> plane ... -> the last: logits -> token
                 ^------------------------- token, where the step has logits ------------/

Every stage runs the same schedule, so each knows what arrives next, and takes nothing else. Knows
an executor of a range of layers; no plan and no model.

Shape legend: R rows, H hidden size, V vocabulary size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from harness.realize.adapter import Executor, StepOutput, Tap
from harness.realize.schedule import PlannedStep
from harness.stages.frames import (
    OPEN,
    PLANE,
    TOKEN,
    Header,
    check_header,
    dtype_number,
    empty_header,
)
from harness.stages.transport import Transport


class RangeExecutor(Executor, Protocol):
    """An executor of a range, which may begin where another range ends."""

    def step_plane(
        self,
        plane: torch.Tensor,
        start_position: int,
        *,
        want_logits: bool,
        tap: Tap | None = None,
    ) -> StepOutput:
        """Run one step over the plane [R, H] that the range before this one put out."""


@dataclass(frozen=True, kw_only=True)
class PlaneForm:
    """What every plane between stages is, besides its rows."""

    width: int
    """H."""
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class StageOutput:
    """What one step gave on this stage."""

    plane: torch.Tensor
    """[R, H]: after this stage's last layer."""
    logits: torch.Tensor | None
    """[V] float32 on the last stage, where the step has logits."""
    token: int | None
    """The last stage's choice, on it and on the first; else ``None``."""


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """One plane that left or reached this stage, for comparison with the other side's."""

    direction: str
    """``sent`` or ``received``."""
    peer: int
    session: int
    sequence: int
    start_position: int
    num_rows: int
    dtype: str
    bytes: int
    digest: str


class Stage:
    """Runs one range of layers in its place in a chain; a chain of one stage is the whole model."""

    def __init__(
        self,
        executor: RangeExecutor,
        transport: Transport,
        *,
        nonce: int,
        form: PlaneForm,
        digest: Callable[[torch.Tensor], str] | None = None,
    ) -> None:
        """Take a place in a chain whose stages have shaken hands.

        Args:
            executor: Of this stage's range.
            transport: Of this stage.
            nonce: Tells this run's frames from another's.
            form: Of the planes between stages.
            digest: Of each plane that crosses, on both of its sides; ``None`` takes none.
        """
        self.crossings: list[Crossing] = []
        self._executor = executor
        self._transport = transport
        self._nonce = nonce
        self._form = form
        self._digest = digest
        self._session = 0
        self._sequences: dict[tuple[str, int], int] = {}
        self._last = transport.num_stages - 1
        self._is_first = transport.stage == 0
        self._is_last = transport.stage == self._last

    def open(self, *, timeout_s: float | None = None) -> None:
        """Empty the mutable state on every stage; returns when the chain may begin a prefill.

        Args:
            timeout_s: Bound on the neighbours' turns where they may still be loading.

        Raises:
            PeerError: When another stage is gone, silent or out of turn.
        """
        self._session += 1
        what = f"the opening of session {self._session}"
        if not self._is_first:
            self._receive(OPEN, self._transport.stage - 1, _nothing(), 0, what, timeout_s)
        self._executor.reset()
        if self._last > 0:
            after = 0 if self._is_last else self._transport.stage + 1
            self._send(OPEN, after, _nothing(), 0, what, timeout_s)
        if self._is_first and self._last > 0:
            self._receive(OPEN, self._last, _nothing(), 0, what, timeout_s)

    def step(self, planned: PlannedStep, token_ids: Sequence[int] | None) -> StageOutput:
        """Take part in one step.

        Args:
            planned: The step, the same on every stage.
            token_ids: [R], on the first stage; no other looks at them.

        Raises:
            ValueError: For no token ids on the first stage.
            PeerError: When another stage is gone, silent or out of turn.
            HarnessError: What the executor raises; other stages then lose this one.
        """
        what = f"the plane of {planned.phase} step {planned.step}"
        position = planned.start_position
        if self._is_first:
            if token_ids is None:
                raise ValueError("expected token ids on the first stage, got none")
            output = self._executor.step(token_ids, position, want_logits=planned.wants_logits)
        else:
            rows = torch.empty(planned.num_rows, self._form.width, dtype=self._form.dtype)
            before = self._transport.stage - 1
            self._receive(PLANE, before, rows, position, what)
            output = self._executor.step_plane(rows, position, want_logits=planned.wants_logits)
        if not self._is_last:
            self._send(PLANE, self._transport.stage + 1, output.plane, position, what)
        token = self._token(output, planned) if planned.wants_logits else None
        return StageOutput(plane=output.plane, logits=output.logits, token=token)

    def _token(self, output: StepOutput, planned: PlannedStep) -> int | None:
        """Choose on the last stage, and bring the choice to the first."""
        what = f"the token of {planned.phase} step {planned.step}"
        position = planned.start_position + planned.num_rows
        if self._is_last:
            if output.logits is None:
                raise ValueError("expected logits from the last stage's range, got none")
            token = self._executor.choose(output.logits).token
            if not self._is_first:
                self._send(TOKEN, 0, torch.tensor([[token]]), position, what)
            return token
        if self._is_first:
            chosen = torch.empty(1, 1, dtype=torch.int64)
            self._receive(TOKEN, self._last, chosen, position, what)
            return int(chosen)
        return None

    def _header(self, kind: int, direction: str, peer: int, rows: torch.Tensor, at: int) -> Header:
        key = (direction, peer)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
        return Header(
            kind=kind,
            nonce=self._nonce,
            session=self._session,
            sequence=sequence,
            start_position=at,
            num_rows=rows.shape[0],
            width=rows.shape[1],
            dtype=dtype_number(rows.dtype),
        )

    def _send(
        self,
        kind: int,
        to: int,
        rows: torch.Tensor,
        at: int,
        what: str,
        timeout_s: float | None = None,
    ) -> None:
        rows = rows.contiguous()
        header = self._header(kind, "sent", to, rows, at)
        self._transport.send(header.pack(), to, what, timeout_s=timeout_s)
        if rows.numel():
            self._transport.send(rows, to, what, timeout_s=timeout_s)
        self._note("sent", to, header, rows)

    def _receive(
        self,
        kind: int,
        source: int,
        rows: torch.Tensor,
        at: int,
        what: str,
        timeout_s: float | None = None,
    ) -> None:
        """Receive what is due into ``rows``; nothing is received before its header was checked."""
        header, received = self._header(kind, "received", source, rows, at), empty_header()
        self._transport.receive(received, source, what, timeout_s=timeout_s)
        check_header(received, header, sender=source, stage=self._transport.stage)
        if rows.numel():
            self._transport.receive(rows, source, what, timeout_s=timeout_s)
        self._note("received", source, header, rows)

    def _note(self, direction: str, peer: int, header: Header, rows: torch.Tensor) -> None:
        if self._digest is None or header.kind != PLANE:
            return
        self.crossings.append(
            Crossing(
                direction=direction,
                peer=peer,
                session=header.session,
                sequence=header.sequence,
                start_position=header.start_position,
                num_rows=header.num_rows,
                dtype=str(rows.dtype).removeprefix("torch."),
                bytes=rows.nbytes,
                digest=self._digest(rows),
            )
        )


def _nothing() -> torch.Tensor:
    """What an opening carries besides its header."""
    return torch.empty(0, 0, dtype=torch.int64)

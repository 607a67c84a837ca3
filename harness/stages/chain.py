"""One stage of a running chain: opens and restores sessions, runs steps in turn with neighbours.

    open, restore   stage 0 acts -> stage 1 acts -> ... -> the last acts -> stage 0 knows
    step            stage 0: token ids -> plane -> stage 1 -> plane ... -> the last: logits -> token
                        ^------------------------- token, where the step has logits -----------/

Every stage runs the same schedule, so each knows what arrives next, and takes nothing else. A plane
is sent without waiting for it to be taken, so that a stage computes one chunk of a prompt while the
next stage computes the chunk before. Knows an executor of a range of layers; no plan and no model.

Shape legend: R rows, H hidden size, V vocabulary size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from harness.measure.clock import monotonic_ns
from harness.realize.adapter import Executor, StepOutput, Tap
from harness.realize.decode import Stepped
from harness.realize.schedule import PlannedStep
from harness.stages.frames import OPEN, PLANE, RESTORE, TOKEN
from harness.stages.transport import Transport
from harness.stages.wire import Crossing, Wire
from harness.state.driver import wait_for

HOST = torch.device("cpu")


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
    device: torch.device = HOST
    """On this stage; the other side's may be another."""

    def rows(self, num_rows: int) -> torch.Tensor:
        """Room for a plane [R, H], unwritten."""
        return torch.empty(num_rows, self.width, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """Where the time of one step went on this stage."""

    received_ns: int
    """Until the plane was here: the stages before it, and the way."""
    compute_ns: int
    sent_ns: int
    """Until the plane before was taken, this one was on its way, and the token came or went."""
    digest_ns: int
    """Of what crossed; counted in none of the others."""


class Stage:
    """Runs one range of layers in its place in a chain; a chain of one stage is the whole model.

    It is the :class:`harness.realize.decode.Steps` of its process.
    """

    def __init__(
        self,
        executor: RangeExecutor,
        transport: Transport,
        *,
        nonce: int,
        form: PlaneForm,
        digest: Callable[[torch.Tensor], str] | None = None,
        start_timeout_s: float | None = None,
    ) -> None:
        """Take a place in a chain whose stages have shaken hands.

        Args:
            executor: Of this stage's range.
            transport: Of this stage.
            nonce: Tells this run's frames from another's.
            form: Of the planes between stages.
            digest: Of each plane that crosses, on both of its sides; ``None`` takes none.
            start_timeout_s: Bound on the first opening, for which others may still be loading.
        """
        self.times: list[StageTime] = []
        self._executor = executor
        self._wire = Wire(transport, nonce=nonce, digest=digest)
        self._form = form
        self._start_timeout_s = start_timeout_s
        self._number, self._last = transport.stage, transport.num_stages - 1
        self._is_first, self._is_last = self._number == 0, self._number == self._last

    @property
    def crossings(self) -> list[Crossing]:
        """What crossed, in order."""
        return self._wire.crossings

    @property
    def takes_token_ids(self) -> bool:
        """Whether this is the first stage."""
        return self._is_first

    def open(self) -> None:
        """Empty the mutable state on every stage; returns when the chain may begin a prefill.

        Raises:
            PeerError: When another stage is gone, silent or out of turn.
        """
        self._wire.session += 1
        timeout_s = self._start_timeout_s if self._wire.session == 1 else None
        what = f"the opening of session {self._wire.session}"
        self._in_turn(OPEN, self._executor.reset, 0, what, timeout_s)

    def restore(self, put_back: Callable[[], None], positions: int) -> None:
        """Have every stage put its mutable state back; returns when all before this one did.

        Args:
            put_back: Of this stage.
            positions: That the state then holds, on every stage.

        Raises:
            PeerError: When another stage is gone, silent or out of turn.
        """
        self._in_turn(RESTORE, put_back, positions, "that its state was restored")

    def settle(self) -> None:
        """Wait until everything that this stage sent is taken: only then may its process end.

        Raises:
            PeerError: When another stage is gone, or does not take it in time.
        """
        self._wire.settle()

    def _in_turn(
        self,
        kind: int,
        act: Callable[[], None],
        position: int,
        what: str,
        timeout_s: float | None = None,
    ) -> None:
        """Act after the stage before, tell the next; the first waits until the last has acted."""
        if not self._is_first:
            before = self._number - 1
            self._wire.receive(kind, before, _nothing(), position, what, timeout_s)
        # What this stage put out must be taken before anything changes below it.
        self._wire.settle()
        act()
        if self._last > 0:
            after = 0 if self._is_last else self._number + 1
            self._wire.send(kind, after, _nothing(), position, what, timeout_s)
        if self._is_first and self._last > 0:
            self._wire.receive(kind, self._last, _nothing(), position, what, timeout_s)

    def step(self, planned: PlannedStep, token_ids: Sequence[int] | None) -> Stepped:
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
        position, wants_logits = planned.start_position, planned.wants_logits
        self._wire.noted_ns()
        clock = _Clock()
        if self._is_first:
            if token_ids is None:
                raise ValueError("expected token ids on the first stage, got none")
            received_ns = clock.lap(self._wire.noted_ns())
            output = self._executor.step(token_ids, position, want_logits=wants_logits)
        else:
            rows = self._form.rows(planned.num_rows)
            self._wire.receive(PLANE, self._number - 1, rows, position, what)
            received_ns = clock.lap(self._wire.noted_ns())
            output = self._executor.step_plane(rows, position, want_logits=wants_logits)
        wait_for(output.plane)
        compute_ns = clock.lap(self._wire.noted_ns())
        if not self._is_last:
            self._wire.post(self._number + 1, output.plane, position, what)
        stepped = self._chosen(output, planned)
        digest_ns = self._wire.noted_ns()
        self.times.append(
            StageTime(
                received_ns=received_ns,
                compute_ns=compute_ns,
                sent_ns=clock.lap(digest_ns),
                digest_ns=clock.left_out_ns,
            )
        )
        return stepped

    def _chosen(self, output: StepOutput, planned: PlannedStep) -> Stepped:
        """Choose on the last stage, and bring the choice to the first."""
        if not planned.wants_logits:
            return Stepped(output=output, choice=None, token=None)
        what = f"the token of {planned.phase} step {planned.step}"
        position = planned.start_position + planned.num_rows
        choice = token = None
        if self._is_last:
            if output.logits is None:
                raise ValueError("expected logits from the last stage's range, got none")
            choice = self._executor.choose(output.logits)
            token = choice.token
            if not self._is_first:
                self._wire.send(TOKEN, 0, torch.tensor([[token]]), position, what)
        elif self._is_first:
            chosen = torch.empty(1, 1, dtype=torch.int64)
            self._wire.receive(TOKEN, self._last, chosen, position, what)
            token = int(chosen)
        return Stepped(output=output, choice=choice, token=token)


class _Clock:
    """Laps of one step, in ns, each without what it is told to leave out."""

    def __init__(self) -> None:
        self._began = monotonic_ns()
        self.left_out_ns = 0

    def lap(self, left_out_ns: int) -> int:
        """Time since the last lap, less what is left out."""
        began, self._began = self._began, monotonic_ns()
        self.left_out_ns += left_out_ns
        return self._began - began - left_out_ns


def _nothing() -> torch.Tensor:
    """What an opening carries besides its header."""
    return torch.empty(0, 0, dtype=torch.int64)

"""Prefill once, snapshot, then decode repeatedly, each time from the restored snapshot.

The loop holds plain values only; the plan is sealed while it runs. Knows an executor, a snapshot
arena, a recorder, and how steps are run; knows no plan and no model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from harness.measure.clock import monotonic_ns
from harness.realize.adapter import Choice, Executor, StepOutput
from harness.realize.recorder import Row, StepRecorder
from harness.realize.schedule import PlannedStep, Schedule
from harness.state.digests import tensor_digest
from harness.state.driver import wait_for
from harness.state.snapshot import copy_declared


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """What one step gave in this process."""

    output: StepOutput
    choice: Choice | None
    """Made here, where the step has logits here."""
    token: int | None
    """Chosen after the step, where this process knows it: what the next decode step feeds."""


class Steps(Protocol):
    """How this process runs steps: by itself, or in turn with others."""

    @property
    def takes_token_ids(self) -> bool:
        """Whether a step here starts with token ids."""

    def open(self) -> None:
        """Empty the mutable state, wherever it is."""

    def restore(self, put_back: Callable[[], None], positions: int) -> None:
        """Have the mutable state of ``positions`` put back, here by ``put_back``."""

    def step(self, planned: PlannedStep, token_ids: Sequence[int] | None) -> Stepped:
        """Run one step; ``token_ids`` [R] where it starts with them."""


class OwnSteps:
    """Steps of a process that runs the whole range by itself."""

    takes_token_ids = True

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def open(self) -> None:
        """Empty the executor's state."""
        self._executor.reset()

    def restore(self, put_back: Callable[[], None], positions: int) -> None:
        """Put the executor's state back."""
        del positions
        put_back()

    def step(self, planned: PlannedStep, token_ids: Sequence[int] | None) -> Stepped:
        """Run one step over token ids, and choose where there are logits."""
        output = self._executor.step(
            token_ids or (), planned.start_position, want_logits=planned.wants_logits
        )
        choice = None if output.logits is None else self._executor.choose(output.logits)
        return Stepped(output=output, choice=choice, token=None if choice is None else choice.token)


class ExecutionLoop:
    """Runs one schedule on one executor and digests the mutable state around each phase."""

    def __init__(
        self,
        executor: Executor,
        snapshot: Mapping[str, torch.Tensor],
        recorder: StepRecorder,
        steps: Steps | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            executor: What holds the mutable state here.
            snapshot: Planned tensors of its geometry.
            recorder: Told of each step.
            steps: How steps are run; by the executor alone where none are given.
        """
        self._executor = executor
        self._snapshot = snapshot
        self._recorder = recorder
        self._steps = OwnSteps(executor) if steps is None else steps
        self.states: list[Row] = []

    def run(self, schedule: Schedule) -> None:
        """Run the whole schedule; rows are in the recorder and in ``states``."""
        self._steps.open()
        self._digest_state(0, "before_prefill")
        first = self.prefill(schedule)
        self._digest_state(0, "after_prefill")
        copy_declared(self._executor.declared_state(), self._snapshot)
        frontier = self._executor.frontier()

        def put_back() -> None:
            copy_declared(self._snapshot, self._executor.declared_state())
            self._executor.restore_frontier(frontier)

        for repetition in range(schedule.repetitions):
            self._steps.restore(put_back, frontier)
            self._digest_state(repetition, "after_restore")
            self.decode(schedule, first, repetition)
            self._digest_state(repetition, "after_decode")

    def prefill(self, schedule: Schedule) -> int | None:
        """Run every chunk in order; returns the token chosen after the last row, if any is."""
        token: int | None = None
        for planned in schedule.steps()[: len(schedule.chunks)]:
            token = self._step(schedule, planned, None, repetition=0)
        return token

    def decode(self, schedule: Schedule, chosen: int | None, repetition: int) -> None:
        """Decode every step, where ``chosen`` is what the prefill chose."""
        for planned in schedule.steps()[len(schedule.chunks) :]:
            chosen = self._step(schedule, planned, chosen, repetition=repetition)

    def _step(
        self, schedule: Schedule, planned: PlannedStep, chosen: int | None, *, repetition: int
    ) -> int | None:
        ids = schedule.inputs(planned, chosen) if self._steps.takes_token_ids else None
        began = monotonic_ns()
        stepped = self._steps.step(planned, ids)
        if stepped.choice is None:
            # Nothing was read from a device yet: its work would count as the sentinels' time.
            wait_for(stepped.output.plane)
        duration_ns = monotonic_ns() - began
        self._recorder.record(
            stepped.output,
            repetition=repetition,
            phase=planned.phase,
            step=planned.step,
            start_position=planned.start_position,
            choice=stepped.choice,
            duration_ns=duration_ns,
            owned=self._executor.ownership,
        )
        return stepped.token

    def _digest_state(self, repetition: int, point: str) -> None:
        for name, tensor in self._executor.declared_state().items():
            self.states.append(
                {
                    "repetition": repetition,
                    "point": point,
                    "name": name,
                    "bytes": tensor.nbytes,
                    "digest": tensor_digest(tensor),
                }
            )

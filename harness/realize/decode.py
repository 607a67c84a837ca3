"""Prefill once, snapshot, then decode repeatedly, each time from the restored snapshot.

The loop holds plain values only; the plan is sealed while it runs. Knows an executor, a snapshot
arena and a recorder; knows no plan and no model.
"""

from collections.abc import Mapping

import torch

from harness.measure.clock import monotonic_ns
from harness.realize.adapter import Executor, StepOutput
from harness.realize.recorder import Row, StepRecorder
from harness.realize.schedule import Schedule
from harness.state.digests import tensor_digest
from harness.state.driver import wait_for
from harness.state.snapshot import copy_declared


class ExecutionLoop:
    """Runs one schedule on one executor and digests the mutable state around each phase."""

    def __init__(
        self,
        executor: Executor,
        snapshot: Mapping[str, torch.Tensor],
        recorder: StepRecorder,
    ) -> None:
        self._executor = executor
        self._snapshot = snapshot
        self._recorder = recorder
        self.states: list[Row] = []

    def run(self, schedule: Schedule) -> None:
        """Run the whole schedule; rows are in the recorder and in ``states``."""
        self._executor.reset()
        self._digest_state(0, "before_prefill")
        first = self.prefill(schedule)
        self._digest_state(0, "after_prefill")
        copy_declared(self._executor.declared_state(), self._snapshot)
        frontier = self._executor.frontier()
        for repetition in range(schedule.repetitions):
            copy_declared(self._snapshot, self._executor.declared_state())
            self._executor.restore_frontier(frontier)
            self._digest_state(repetition, "after_restore")
            self.decode(schedule, first, repetition)
            self._digest_state(repetition, "after_decode")

    def prefill(self, schedule: Schedule) -> int | None:
        """Run every chunk in order; returns the token chosen after the last row, if any is."""
        token: int | None = None
        for chunk in schedule.chunks:
            token = self._step(
                chunk.token_ids,
                chunk.start_position,
                want_logits=chunk.is_last and schedule.has_head,
                repetition=0,
                phase="prefill",
                step=chunk.index,
            )
        return token

    def decode(self, schedule: Schedule, chosen: int | None, repetition: int) -> None:
        """Decode every step, where ``chosen`` is what the prefill chose."""
        for step in range(schedule.decode_steps):
            chosen = self._step(
                (schedule.decode_input(step, chosen),),
                schedule.prompt_rows + step,
                want_logits=schedule.has_head,
                repetition=repetition,
                phase="decode",
                step=step,
            )

    def _step(
        self,
        token_ids: tuple[int, ...],
        start_position: int,
        *,
        want_logits: bool,
        repetition: int,
        phase: str,
        step: int,
    ) -> int | None:
        began = monotonic_ns()
        output: StepOutput = self._executor.step(token_ids, start_position, want_logits=want_logits)
        choice = None if output.logits is None else self._executor.choose(output.logits)
        if choice is None:
            # Nothing was read from a device yet: its work would count as the sentinels' time.
            wait_for(output.plane)
        duration_ns = monotonic_ns() - began
        self._recorder.record(
            output,
            repetition=repetition,
            phase=phase,
            step=step,
            start_position=start_position,
            choice=choice,
            duration_ns=duration_ns,
            owned=self._executor.ownership,
        )
        return None if choice is None else choice.token

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

"""Decode steps that are recorded once, at each position, and then only replayed. Knows no family.

What a step takes and gives lies in planned buffers, so that a recording's addresses stay good. A
recording holds the launches of one position: its ranges are those of that position. Nothing may
be recorded before the same binaries have run; prefill runs them, as they do not depend on the
number of rows.

Shapes: H hidden size, V vocabulary size.
"""

from collections.abc import Callable, Mapping

import torch

from harness.realize.adapter import StepOutput
from harness.state.recording import MakeRecording, Recording

TOKEN_ID, PLANE, LOGITS = "token_id", "plane", "logits"
Compute = Callable[[torch.Tensor, int, bool], StepOutput]
"""The device's part of a covered step: ids [1], position, and whether logits are wanted."""


class RecordedSteps:
    """Runs steps of one row through buffers ``token_id`` [1], ``plane`` [1, H], ``logits`` [V]."""

    def __init__(
        self,
        compute: Compute,
        first_position: int,
        buffers: Mapping[str, torch.Tensor],
        record: MakeRecording,
    ) -> None:
        """Record ``compute`` from a position on, through planned buffers."""
        self._compute = compute
        self._first_position = first_position
        self._buffers = buffers
        self._record = record
        self._recordings: dict[tuple[int, bool], Recording] = {}
        self.num_replayed = 0

    def takes(self, start_position: int, num_rows: int) -> bool:
        """Whether a step is one that is recorded."""
        return num_rows == 1 and start_position >= self._first_position

    def run(self, token_id: int, position: int, want_logits: bool) -> StepOutput:
        """Replay the step at a covered position, recorded first where it was not yet."""
        self._buffers[TOKEN_ID].fill_(token_id)
        key = position, want_logits and LOGITS in self._buffers
        recording = self._recordings.get(key)
        if recording is None:
            recording = self._record(lambda: self._into_buffers(*key))
            self._recordings[key] = recording
        recording.replay()
        self.num_replayed += 1
        return StepOutput(
            plane=self._buffers[PLANE], logits=self._buffers[LOGITS] if key[1] else None
        )

    def _into_buffers(self, position: int, want_logits: bool) -> None:
        output = self._compute(self._buffers[TOKEN_ID], position, want_logits)
        self._buffers[PLANE].copy_(output.plane)
        if output.logits is not None:
            self._buffers[LOGITS].copy_(output.logits)

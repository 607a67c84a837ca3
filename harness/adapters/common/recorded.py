"""Decode steps that are recorded once and then only replayed, at every position. Knows no family.

What a step takes and gives lies in planned buffers, so that a recording's addresses stay good; its
position is one of them, and is read on the device. So there are at most two recordings, with
logits and without, however many steps are run; they live as long as what holds this.

Nothing may be recorded before the same binaries have run: see :class:`Rehearsed`, and the warm-up.

Shapes: H hidden size, V vocabulary size.
"""

from collections.abc import Callable, Mapping

import torch

from harness.realize.adapter import StepOutput
from harness.state.recording import MakeRecording, Recording

TOKEN_ID, POSITION, PLANE, LOGITS = "token_id", "position", "plane", "logits"
Compute = Callable[[torch.Tensor, torch.Tensor, bool], StepOutput]
"""The device's part of a covered step: ids [1], position [1], and whether logits are wanted."""


class RecordedSteps:
    """Runs steps of one row through buffers.

    ``token_id`` [1], ``position`` [1], ``plane`` [1, H], ``logits`` [V].
    """

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
        self._recordings: dict[bool, Recording] = {}
        self.num_replayed = 0

    def takes(self, start_position: int, num_rows: int) -> bool:
        """Whether a step is one that is recorded."""
        return num_rows == 1 and start_position >= self._first_position

    def run(self, token_id: int, position: int, want_logits: bool) -> StepOutput:
        """Replay the step at a covered position; it is recorded first where it was not yet."""
        # Arguments of launches: no bytes are copied, which would wait for the device.
        self._buffers[TOKEN_ID].fill_(token_id)
        self._buffers[POSITION].fill_(position)
        has_logits = want_logits and LOGITS in self._buffers
        recording = self._recordings.get(has_logits)
        if recording is None:
            recording = self._record(lambda: self._into_buffers(has_logits))
            self._recordings[has_logits] = recording
        recording.replay()
        self.num_replayed += 1
        return StepOutput(
            plane=self._buffers[PLANE], logits=self._buffers[LOGITS] if has_logits else None
        )

    def _into_buffers(self, want_logits: bool) -> None:
        output = self._compute(self._buffers[TOKEN_ID], self._buffers[POSITION], want_logits)
        self._buffers[PLANE].copy_(output.plane)
        if output.logits is not None:
            self._buffers[LOGITS].copy_(output.logits)

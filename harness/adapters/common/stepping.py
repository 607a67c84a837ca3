"""Entries of a step, as they are in every family: rows are validated and covered, then run.

Knows token ids, planes and an owned session; what runs over the rows a family's subclass says.

Shape legend: R rows, H hidden size.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import torch

from harness.adapters.common.executor import SessionExecutor
from harness.adapters.common.recorded import RecordedSteps
from harness.errors import InvalidInputError
from harness.plan.records import REPLAYED_STEPS
from harness.realize.adapter import StepOutput, Tap
from harness.state.recording import MakeRecording
from kernels.attention.api import select as select_attention

Position = int | torch.Tensor
"""Of a step's first row; or, of a step of one row, [1] int64 that is read where the row is."""
ExpectedTensor = tuple[Mapping[str, torch.Tensor], str, tuple[int, ...], torch.dtype]
"""Where a tensor is looked for, its name there, shape and dtype."""


class RangeExecutor(SessionExecutor):
    """Runs a range of layers from token ids, or from the plane of the range before it."""

    _hidden_size: int
    _vocab_size: int
    _table: torch.Tensor | None
    """The embedding's, or ``None`` for a range without one."""
    _recorded: RecordedSteps | None = None

    @abstractmethod
    def _embedded(self, token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Rows [R, H] of ids [R]."""

    @abstractmethod
    def _run(
        self,
        hidden: torch.Tensor,
        start_position: Position,
        want_logits: bool,
        tap: Tap | None,
        boundary: int,
    ) -> StepOutput:
        """Run covered rows [R, H]; ``boundary`` is the first index that is not hit yet.

        A tensor as position is given only for a kernel set that takes one, and without a tap.
        """

    def _require_readable(self, position: int) -> None:
        """Check on the host what a step that reads its position on the device cannot; here, all
        that is covered can be read."""

    @torch.inference_mode()
    def step(
        self,
        token_ids: Sequence[int],
        start_position: int,
        *,
        want_logits: bool,
        tap: Tap | None = None,
    ) -> StepOutput:
        """Run one step over token ids; see :meth:`step_plane` for a range without embeddings.

        Raises:
            InvalidInputError: For no rows, an id outside the vocabulary, or a gap.
            ResourceError: When the state's capacity is exceeded. Nothing is written then.
        """
        if self._table is None:
            raise InvalidInputError(
                "this range has no embeddings", hint="pass the plane of the range before it"
            )
        if not token_ids or not 0 <= min(token_ids) <= max(token_ids) < self._vocab_size:
            raise InvalidInputError(
                "token ids are not valid",
                expected=f"one or more in [0, {self._vocab_size})",
                got=str(list(token_ids)[:16]),
            )
        self._session.cover(start_position, len(token_ids))
        recorded = self._recorded
        if recorded is not None and tap is None and recorded.takes(start_position, len(token_ids)):
            self._require_readable(start_position)
            output = recorded.run(token_ids[0], start_position, want_logits)
            self._session.end_step()
            return output
        ids = _on_device(token_ids, self._table.device)
        hidden = self._embedded(ids, self._table)
        if tap is not None:
            tap(0, ids)
            tap(1, _positions(start_position, hidden))
            tap(2, hidden)
        return self._finish(hidden, start_position, want_logits, tap, 3)

    def record_decode(
        self,
        first_position: int,
        buffers: Mapping[str, torch.Tensor],
        record: MakeRecording,
    ) -> None:
        """From now on record a step of one row once, and replay it at every position.

        Args:
            first_position: Earlier ones are a prompt's, and run as they do without.
            buffers: What such a step takes and gives (see :class:`RecordedSteps`).
            record: Takes a recording.

        Raises:
            InvalidInputError: For a range without embeddings.
        """
        table = self._table
        if table is None:
            raise InvalidInputError("a range without embeddings records no steps")

        takes_tensor = select_attention(self._kernel_set).prepare_at is not None

        def compute(ids: torch.Tensor, position: torch.Tensor, want_logits: bool) -> StepOutput:
            # Elsewhere the host is where the rows are, and reading it there waits for nobody.
            place = position if takes_tensor else int(position)
            return self._run(self._embedded(ids, table), place, want_logits, None, 0)

        self._recorded = RecordedSteps(compute, first_position, buffers, record)

    def conditions(self) -> Mapping[str, str]:
        """As of every executor; and how many steps were replayed, where they are recorded."""
        found = super().conditions()
        if self._recorded is None:
            return found
        return {**found, REPLAYED_STEPS: str(self._recorded.num_replayed)}

    @torch.inference_mode()
    def step_plane(
        self,
        plane: torch.Tensor,
        start_position: int,
        *,
        want_logits: bool,
        tap: Tap | None = None,
    ) -> StepOutput:
        """Run one step over the plane [R, H] that the range before this one put out.

        Raises:
            InvalidInputError: For a plane that does not fit, or a gap.
            ResourceError: When the state's capacity is exceeded. Nothing is written then.
        """
        if plane.ndim != 2 or plane.shape[1] != self._hidden_size or plane.dtype != self._dtype:
            raise InvalidInputError(
                "the plane does not fit",
                expected=f"[rows, {self._hidden_size}] of {self._dtype}",
                got=f"{list(plane.shape)} of {plane.dtype}",
            )
        self._session.cover(start_position, plane.shape[0])
        if tap is not None:
            tap(0, _positions(start_position, plane))
            tap(1, plane)
        return self._finish(plane, start_position, want_logits, tap, 2)

    def _finish(
        self,
        hidden: torch.Tensor,
        start_position: int,
        want_logits: bool,
        tap: Tap | None,
        boundary: int,
    ) -> StepOutput:
        output = self._run(hidden, start_position, want_logits, tap, boundary)
        self._session.end_step()
        return output


def _on_device(token_ids: Sequence[int], device: torch.device) -> torch.Tensor:
    """Ids [R] int64; of a single one no bytes are copied, which would wait for the device."""
    if len(token_ids) == 1:
        return torch.full((1,), token_ids[0], dtype=torch.int64, device=device)
    return torch.tensor(token_ids, dtype=torch.int64, device=device)


def _positions(start_position: int, rows: torch.Tensor) -> torch.Tensor:
    """Positions [R] of rows [R, H]; in a contiguous cache they are the slots."""
    end = start_position + rows.shape[0]
    return torch.arange(start_position, end, dtype=torch.int64, device=rows.device)


def require_tensors(wanted: Iterable[ExpectedTensor]) -> None:
    """Refuse to bind tensors that do not fit the model.

    Raises:
        InvalidInputError: Listing every tensor that is absent or has another geometry.
    """
    problems = []
    for tensors, name, shape, dtype in wanted:
        tensor = tensors.get(name)
        if tensor is None:
            problems.append(f"{name}: absent")
        elif tuple(tensor.shape) != shape or tensor.dtype != dtype:
            problems.append(
                f"{name}: expected {shape} {dtype}, got {tuple(tensor.shape)} {tensor.dtype}"
            )
    if problems:
        raise InvalidInputError(
            "resident tensors do not fit the model", got="; ".join(sorted(problems))
        )

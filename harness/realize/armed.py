"""The armed pass: replays steps from a frozen state, and digests what passes each boundary.

    reset -> unarmed steps -> freeze -> (restore -> armed steps) x repetitions

Runs after the ordinary execution of a schedule, on the same executor, and shares none of its rows:
what it digests of outputs and state is compared with the ordinary run by whoever reads both. Knows
no plan, no model and no verdict.
"""

from collections.abc import Mapping, Sequence

import torch

from harness.errors import InvalidInputError
from harness.measure.clock import monotonic_ns
from harness.plan.layout import HEAD_BOUNDARIES
from harness.realize.adapter import Executor, Tap
from harness.realize.arming import Arming
from harness.realize.schedule import PlannedStep, Schedule
from harness.state.digest_kinds import digest_function
from harness.state.digests import tensor_digest
from harness.state.snapshot import copy_declared

Row = dict[str, object]
Seen = tuple[int, torch.dtype, torch.Size, int, str, bool]
"""Index, dtype, shape, bytes, digest and whether kept, of one boundary."""


class ArmedPass:
    """Collects the rows of ``boundaries``, ``armed_steps``, ``replay_states``, ``armed_times``."""

    def __init__(
        self,
        executor: Executor,
        frozen: Mapping[str, torch.Tensor],
        boundaries: Sequence[str],
        arming: Arming,
    ) -> None:
        """Prepare a pass.

        Args:
            executor: What runs.
            frozen: Planned tensors of the mutable state's geometry, to freeze it in.
            boundaries: Names of the boundaries of a step with logits, in execution order.
            arming: What is observed.

        Raises:
            InvalidInputError: When no boundary passes the filter.
            NotEvaluableError: When the kind of digest is not available.
        """
        if not any(arming.passes_boundary(name) for name in boundaries):
            raise InvalidInputError(
                "arming lets no boundary pass",
                expected=f"some of {len(boundaries)} boundaries",
                got=f"layers {arming.layers}",
            )
        self._executor = executor
        self._frozen = frozen
        self._names = tuple(boundaries)
        self._arming = arming
        self.digest = digest_function(arming.digest_kind)
        passing = [n for n, name in enumerate(boundaries) if arming.passes_boundary(name)]
        self.digested = frozenset(passing)
        """Places of the boundaries that are digested in a step that passes."""
        self.wanted = frozenset(n for n in passing if arming.keeps(boundaries[n]))
        """Of these, the ones whose tensors are to be kept."""
        self.boundaries: list[Row] = []
        self.steps: list[Row] = []
        self.states: list[Row] = []
        self.times: list[Row] = []
        self.kept: dict[str, torch.Tensor] = {}
        """Kept tensors, as ``<repetition>/<phase>/<step>/<boundary>``."""
        self._kept_bytes = 0

    def run(self, schedule: Schedule) -> None:
        """Replay the schedule from the frozen state on.

        Raises:
            InvalidInputError: When the schedule has no such step, or none passes the filter.
        """
        steps = schedule.steps()
        first = self._first(steps)
        self._executor.reset()
        chosen: int | None = None
        for step in steps[:first]:
            chosen = self._step(schedule, step, chosen, repetition=None)
        copy_declared(self._executor.declared_state(), self._frozen)
        frontier = self._executor.frontier()
        self._digest_state(0, "frozen")
        for repetition in range(self._arming.repetitions):
            copy_declared(self._frozen, self._executor.declared_state())
            self._executor.restore_frontier(frontier)
            self._digest_state(repetition, "after_restore")
            token = chosen
            for step in steps[first:]:
                token = self._step(schedule, step, token, repetition=repetition)
            self._digest_state(repetition, "after_steps")

    def _first(self, steps: Sequence[PlannedStep]) -> int:
        arming = self._arming
        places = [(step.phase, step.step) for step in steps]
        wanted = (arming.replay_phase, arming.replay_step)
        if wanted not in places:
            raise InvalidInputError(
                "the schedule has no such step to replay from",
                expected=", ".join(f"{phase} {step}" for phase, step in places[:40]),
                got=f"{arming.replay_phase} {arming.replay_step}",
            )
        first = places.index(wanted)
        if not any(self._passes(step) for step in steps[first:]):
            raise InvalidInputError("arming lets no step pass", got=str(arming.document()))
        return first

    def _passes(self, step: PlannedStep) -> bool:
        return self._arming.passes_step(step.phase, step.step, step.num_rows)

    def _step(
        self, schedule: Schedule, step: PlannedStep, chosen: int | None, *, repetition: int | None
    ) -> int | None:
        """Run one step, armed where it passes; records nothing without a repetition."""
        is_armed = repetition is not None and self._passes(step)
        ids = schedule.inputs(step, chosen)
        where: Row = {"repetition": repetition, "phase": step.phase, "step": step.step}
        watch = _Watch(self, where) if is_armed else None
        tap: Tap | None = watch
        began = monotonic_ns()
        output = self._executor.step(
            ids, step.start_position, want_logits=step.wants_logits, tap=tap
        )
        duration_ns = monotonic_ns() - began
        token = None if output.logits is None else self._executor.choose(output.logits).token
        if repetition is None:
            return token
        if watch is not None:
            watch.require_complete(has_head=output.logits is not None)
            self.boundaries += self.rows(where, watch.seen)
            self.times.append(where | {"duration_ns": duration_ns, "digest_ns": watch.digest_ns})
        self.steps.append(
            where
            | {
                "is_armed": is_armed,
                "num_rows": step.num_rows,
                "token": token,
                "plane_digest": tensor_digest(output.plane),
                "logits_digest": None if output.logits is None else tensor_digest(output.logits),
            }
        )
        return token

    def rows(self, where: Row, seen: Sequence[Seen]) -> list[Row]:
        """Rows of ``boundaries`` of one step."""
        return [
            where
            | {
                "boundary": index,
                "name": self._names[index],
                "dtype": str(dtype).removeprefix("torch."),
                "shape": list(shape),
                "bytes": num_bytes,
                "digest": digest,
                "is_kept": is_kept,
            }
            for index, dtype, shape, num_bytes, digest, is_kept in seen
        ]

    def keep(self, where: Row, index: int, tensor: torch.Tensor) -> bool:
        """Keep a boundary's tensor where that is asked for and fits; says whether it was."""
        fits = self._kept_bytes + tensor.nbytes <= self._arming.keep_max_bytes
        if fits:
            place = f"{where['repetition']}/{where['phase']}/{where['step']}/{self._names[index]}"
            self.kept[place] = tensor.detach().to("cpu", copy=True).contiguous()
            self._kept_bytes += tensor.nbytes
        return fits

    def require_hits(self, hits: Sequence[int], *, has_head: bool) -> None:
        """Refuse a step that did not hit each expected boundary once, in order.

        Raises:
            RuntimeError: Otherwise; the adapter then does not do what its layout declares.
        """
        expected = [
            index
            for index, name in enumerate(self._names)
            if has_head or name not in HEAD_BOUNDARIES
        ]
        if list(hits) != expected:
            raise RuntimeError(
                f"expected each of {len(expected)} boundaries once and in order, got {len(hits)}"
            )

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


class _Watch:
    """The tap of one step: digests what passes, and counts hits and the time that it took.

    Called hundreds of times in a step, so that rows are made of what it saw only afterwards.
    """

    def __init__(self, owner: ArmedPass, where: Row) -> None:
        self._owner = owner
        self._where = where
        self._hits: list[int] = []
        self.seen: list[Seen] = []
        self.digest_ns = 0

    def __call__(self, index: int, tensor: torch.Tensor) -> None:
        began = monotonic_ns()
        owner = self._owner
        self._hits.append(index)
        if index in owner.digested:
            is_kept = index in owner.wanted and owner.keep(self._where, index, tensor)
            digest = owner.digest(tensor)
            self.seen.append((index, tensor.dtype, tensor.shape, tensor.nbytes, digest, is_kept))
        self.digest_ns += monotonic_ns() - began

    def require_complete(self, *, has_head: bool) -> None:
        """See :meth:`ArmedPass.require_hits`."""
        self._owner.require_hits(self._hits, has_head=has_head)

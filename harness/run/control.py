"""The control: one ordinary run of a whole range, and what each stage of it must have.

A stage's planes are those at the boundary where its layers end; its state is its layers' share of
the control's. Knows shapes and names of boundaries; no adapter, no plan and no process.

Shape legend: P prompt rows, D decode steps, H hidden size, V vocabulary size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from harness.plan.records import ModelRange
from harness.realize.adapter import Executor
from harness.realize.schedule import PlannedStep, Schedule
from harness.state.digests import tensor_digest

Row = dict[str, object]
State = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the range, and where its share of the reference goes."""

    folder: Path
    spec: ModelRange
    empty_state: State | None = None
    """Its mutable state when empty; ``None`` for a part that is the whole."""


@dataclass(kw_only=True)
class _Kept:
    """Outputs of one part, step by step."""

    planes: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    logits: dict[str, list[torch.Tensor]] = field(default_factory=dict)


class Control:
    """Runs a schedule once on the whole range, and keeps each part's outputs and states."""

    def __init__(
        self, executor: Executor, parts: Sequence[Part], boundaries: Sequence[str]
    ) -> None:
        """Prepare a run.

        Args:
            executor: Of the whole range.
            parts: In order; the last ends where the range ends.
            boundaries: Names of the whole range's boundaries, in execution order.
        """
        self.tokens: dict[tuple[str, int], int] = {}
        """After each step that chooses one, by phase and step."""
        self.states: dict[ModelRange, list[Row]] = {part.spec: [] for part in parts}
        """Rows of ``fixture_states``."""
        self._executor = executor
        self._parts = parts
        self._kept = {part.spec: _Kept() for part in parts}
        self._ends = {
            last_boundary(boundaries, part.spec.end_layer - 1): part.spec for part in parts[:-1]
        }
        self._empty: dict[str, torch.Tensor] = {}

    @property
    def outputs(self) -> dict[ModelRange, dict[str, torch.Tensor]]:
        """Stacked outputs of each part: planes [P, H] and [D, H], logits [V] and [D, V]."""
        found = {}
        for spec, kept in self._kept.items():
            stacked = {f"{phase}.plane": torch.cat(rows) for phase, rows in kept.planes.items()}
            if kept.logits:
                stacked["prefill.logits"] = kept.logits["prefill"][-1]
                stacked["decode.logits"] = torch.stack(kept.logits["decode"])
            found[spec] = stacked
        return found

    def run(self, schedule: Schedule) -> None:
        """Prefill and decode once."""
        self._executor.reset()
        state = self._executor.declared_state()
        self._empty = {name: tensor.clone() for name, tensor in state.items()}
        chosen: int | None = None
        for index, planned in enumerate(schedule.steps()):
            if index == len(schedule.chunks):
                self._note_states("after_prefill")
            chosen = self._step(planned, schedule.inputs(planned, chosen))
        self._note_states("after_decode")

    def _step(self, planned: PlannedStep, ids: Sequence[int]) -> int | None:
        def tap(index: int, tensor: torch.Tensor) -> None:
            if index in self._ends:
                self._keep(self._ends[index], planned.phase, tensor)

        output = self._executor.step(
            ids,
            planned.start_position,
            want_logits=planned.wants_logits,
            tap=tap if self._ends else None,
        )
        last = self._parts[-1].spec
        self._keep(last, planned.phase, output.plane)
        if output.logits is None:
            return None
        self._kept[last].logits.setdefault(planned.phase, []).append(output.logits.clone().cpu())
        token = self._executor.choose(output.logits).token
        self.tokens[planned.phase, planned.step] = token
        return token

    def _keep(self, spec: ModelRange, phase: str, plane: torch.Tensor) -> None:
        self._kept[spec].planes.setdefault(phase, []).append(plane.clone().cpu())

    def _note_states(self, point: str) -> None:
        state = self._executor.declared_state()
        offsets: dict[str, int] = {}
        for part in self._parts:
            own = state if part.empty_state is None else self._share(state, part, offsets)
            self.states[part.spec] += state_rows(own, point)

    def _share(self, state: State, part: Part, offsets: dict[str, int]) -> State:
        """A part's share: its rows along the first axis, or what all parts have alike.

        What the control never changed since it was empty says what the state is made for: of a
        part it is as it was when the part's own was empty.
        """
        share = {}
        for name, empty in (part.empty_state or {}).items():
            whole = state[name]
            if whole.shape == empty.shape:
                is_fixed = torch.equal(whole, self._empty[name])
                share[name] = empty if is_fixed else whole
                continue
            begin = offsets.get(name, 0)
            offsets[name] = begin + empty.shape[0]
            share[name] = whole[begin : offsets[name]].contiguous()
        return share


def state_rows(state: State, point: str) -> list[Row]:
    """Rows of ``fixture_states``: the mutable state as the ordinary run has it."""
    return [
        {"point": point, "name": name, "bytes": tensor.nbytes, "digest": tensor_digest(tensor)}
        for name, tensor in state.items()
    ]


def last_boundary(boundaries: Sequence[str], layer: int) -> int:
    """Index of a layer's last boundary: what the layer puts out."""
    return max(n for n, name in enumerate(boundaries) if name.startswith(f"layers.{layer}."))

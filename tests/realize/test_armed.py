"""The armed pass on the fake family: what it digests, proves and refuses."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_family import SIZE, SPEC, STATE, WORKLOAD, FakeExecutor

from harness.errors import InvalidInputError
from harness.evidence import tables
from harness.realize.adapter import StepOutput, Tap
from harness.realize.armed import ArmedPass
from harness.realize.arming import Arming
from harness.realize.decode import ExecutionLoop
from harness.realize.recorder import StepRecorder
from harness.realize.schedule import schedule_of
from harness.state.digests import tensor_digest

NAMES = ("token_ids", "layers.0.state_before", "layers.0.plane", "final_norm", "logits")
SCHEDULE = schedule_of(WORKLOAD, SPEC)


class Tapped(FakeExecutor):
    """Hits its boundaries as an adapter does."""

    def step(
        self,
        token_ids: Sequence[int],
        start_position: int,
        *,
        want_logits: bool,
        tap: Tap | None = None,
    ) -> StepOutput:
        before = self.state["s"].clone()
        output = super().step(token_ids, start_position, want_logits=want_logits)
        if tap is not None:
            self.hit(tap, torch.tensor(token_ids), before, output)
        return output

    def hit(self, tap: Tap, ids: torch.Tensor, before: torch.Tensor, output: StepOutput) -> None:
        hits = [ids, before, output.plane]
        if output.logits is not None:
            hits += [output.plane[-1:], output.logits]
        for index, tensor in enumerate(hits):
            tap(index, tensor)


def executor(kind: type[FakeExecutor] = Tapped) -> FakeExecutor:
    weight = torch.arange(SIZE * SIZE, dtype=torch.float32).view(SIZE, SIZE).sin()
    return kind(weight, {"s": torch.zeros(STATE.shape)})


def passed(target: FakeExecutor, **arming: Any) -> ArmedPass:
    armed = ArmedPass(target, {"s": torch.zeros(STATE.shape)}, NAMES, Arming(**arming))
    armed.run(SCHEDULE)
    return armed


def by_point(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], str]:
    return {(row["point"], row["repetition"]): row["digest"] for row in rows}


def test_every_boundary_of_every_step_is_digested_once_in_order() -> None:
    armed = passed(executor(), repetitions=2)
    places = [(r["repetition"], r["phase"], r["step"], r["name"]) for r in armed.boundaries]
    expected = [
        (repetition, step.phase, step.step, name)
        for repetition in range(2)
        for step in SCHEDULE.steps()
        for name in (NAMES if step.wants_logits else NAMES[:3])
    ]
    assert places == expected
    for name, rows in (
        ("boundaries", armed.boundaries),
        ("armed_steps", armed.steps),
        ("replay_states", armed.states),
        ("armed_times", armed.times),
    ):
        tables.encode(name, rows)


def test_armed_outputs_are_those_of_the_unarmed_run() -> None:
    recorder = StepRecorder(None)
    target = executor()
    ExecutionLoop(target, {"s": torch.zeros(STATE.shape)}, recorder).run(SCHEDULE)
    known = {(r["phase"], r["step"]): r for r in recorder.steps if r["repetition"] == 0}
    armed = passed(target, repetitions=2)
    assert len(armed.steps) == 2 * len(SCHEDULE.steps())
    for row in armed.steps:
        unarmed = known[row["phase"], row["step"]]
        for column in ("token", "plane_digest", "logits_digest", "num_rows"):
            assert row[column] == unarmed[column]


def test_replays_prove_that_steps_change_the_state_and_the_restore_returns_it() -> None:
    digests = by_point(passed(executor(), repetitions=3).states)
    assert len(digests) == 1 + 2 * 3
    for repetition in range(3):
        assert digests["after_restore", repetition] == digests["frozen", 0]
        assert digests["after_steps", repetition] != digests["frozen", 0]


def test_a_replay_can_begin_at_any_step() -> None:
    whole = passed(executor())
    late = passed(executor(), repetitions=2, replay_phase="prefill", replay_step=1)
    assert {(r["phase"], r["step"]) for r in late.steps} == {
        ("prefill", 1),
        *[("decode", step) for step in range(3)],
    }
    # The state before the second chunk is what one after the first is.
    zeros = tensor_digest(torch.zeros(STATE.shape))
    assert by_point(whole.states)["frozen", 0] == zeros != by_point(late.states)["frozen", 0]
    first = [r["digest"] for r in whole.boundaries if (r["phase"], r["step"]) == ("decode", 2)]
    again = [r["digest"] for r in late.boundaries if (r["phase"], r["step"]) == ("decode", 2)]
    assert again == first * 2


def test_filters_choose_steps_and_layers() -> None:
    armed = passed(executor(), phases=("prefill",), steps=(1,), layers=(0,))
    assert [(r["phase"], r["step"], r["name"]) for r in armed.boundaries] == [
        ("prefill", 1, "layers.0.state_before"),
        ("prefill", 1, "layers.0.plane"),
    ]
    assert [row["is_armed"] for row in armed.steps] == [False, True, False, False, False]
    by_shape = passed(executor(), num_rows=(2,))
    assert {(r["phase"], r["step"]) for r in by_shape.boundaries} == {("prefill", 0)}


@pytest.mark.parametrize(
    "arming",
    [
        {"replay_phase": "prefill", "replay_step": 9},
        {"layers": (7,)},
        {"num_rows": (99,)},
        {"phases": ("prefill",), "replay_phase": "decode"},
    ],
)
def test_an_arming_that_lets_nothing_pass_is_refused(arming: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        passed(executor(), **arming)


def test_kept_tensors_are_the_ones_that_were_digested_within_the_bound() -> None:
    armed = passed(executor(), repetitions=2, keep=("logits", "*.state_before"))
    kept = {
        f"{r['repetition']}/{r['phase']}/{r['step']}/{r['name']}": r["digest"]
        for r in armed.boundaries
        if r["is_kept"]
    }
    assert {name: tensor_digest(tensor) for name, tensor in armed.kept.items()} == kept
    assert len(kept) == 2 * (5 + 4)
    bound = passed(executor(), keep=("logits",), keep_max_bytes=2 * SIZE * 4)
    assert sum(tensor.nbytes for tensor in bound.kept.values()) == 2 * SIZE * 4
    assert sum(bool(row["is_kept"]) for row in bound.boundaries) == 2


class Skips(Tapped):
    """Misses its last boundary."""

    def hit(self, tap: Tap, *rest: Any) -> None:
        super().hit(lambda index, tensor: None if index == 2 else tap(index, tensor), *rest)


class Repeats(Tapped):
    """Hits each boundary twice."""

    def hit(self, tap: Tap, *rest: Any) -> None:
        super().hit(tap, *rest)
        super().hit(tap, *rest)


@pytest.mark.parametrize("kind", [Skips, Repeats, FakeExecutor])
def test_a_step_that_does_not_hit_each_boundary_once_is_refused(kind: type[FakeExecutor]) -> None:
    with pytest.raises(RuntimeError, match="once and in order"):
        passed(executor(kind))


class Drifts(Tapped):
    """Keeps a counter outside of its declared state."""

    calls = 0

    def step(self, *args: Any, **kwargs: Any) -> StepOutput:
        output = super().step(*args, **kwargs)
        type(self).calls += 1
        return replace(output, plane=output.plane + type(self).calls * 1e-6)


def test_a_drift_outside_the_state_shows_between_replays() -> None:
    armed = passed(executor(Drifts), repetitions=2)
    planes = [r["plane_digest"] for r in armed.steps if (r["phase"], r["step"]) == ("prefill", 0)]
    assert len(set(planes)) == 2

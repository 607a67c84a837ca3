"""A chain's order of events and what it refuses: a real group, and executors that are toys."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from harness.realize.adapter import Choice, StepOutput
from harness.realize.schedule import PlannedStep
from harness.stages.chain import PlaneForm, Stage
from harness.stages.errors import PeerError
from harness.stages.transport import Transport
from harness.state.digests import tensor_digest

WIDTH = 3
FORM = PlaneForm(width=WIDTH, dtype=torch.float32)


class Toy:
    """Adds its number to every row; the last one's logits are the last row."""

    def __init__(self, stage: int, events: list[tuple[str, int]]) -> None:
        self.stage = stage
        self.events = events

    def reset(self) -> None:
        self.events.append(("reset", self.stage))

    def step(self, token_ids: Sequence[int], start_position: int, *, want_logits: bool) -> Any:
        rows = torch.tensor(token_ids, dtype=torch.float32)[:, None].repeat(1, WIDTH)
        return self.step_plane(rows, start_position, want_logits=want_logits)

    def step_plane(self, plane: torch.Tensor, start_position: int, *, want_logits: bool) -> Any:
        self.events.append(("step", self.stage))
        plane = plane * 10 + self.stage
        return StepOutput(plane=plane, logits=plane[-1] if want_logits else None)

    def choose(self, logits: torch.Tensor) -> Choice:
        return Choice(token=int(logits[0]), margin=0.0)


def planned(start: int, rows: int, *, phase: str = "prefill", logits: bool = False) -> PlannedStep:
    return PlannedStep(
        phase=phase, step=start, start_position=start, num_rows=rows, wants_logits=logits
    )


def stage_of(transport: Transport, events: list[tuple[str, int]], **changes: Any) -> Stage:
    toy: Any = Toy(transport.stage, events)
    settings: dict[str, Any] = {"nonce": 5, "form": FORM, "digest": tensor_digest} | changes
    settings.setdefault("start_timeout_s", 20)
    return Stage(toy, transport, **settings)


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_every_stage_is_reset_before_any_step_and_the_token_comes_back(
    in_threads: Callable[..., list[Any]], num_stages: int
) -> None:
    events: list[tuple[str, int]] = []

    def act(transport: Transport) -> list[Any]:
        stage = stage_of(transport, events)
        outputs = []
        for _ in range(2):
            stage.open()
            for step in (planned(0, 2), planned(2, 1, logits=True)):
                ids = (1, 2)[: step.num_rows] if transport.stage == 0 else None
                outputs.append(stage.step(step, ids))
        stage.settle()
        return outputs

    results = in_threads(num_stages, act)
    each = 3 * num_stages
    for events_of_session in (events[:each], events[each:]):
        assert events_of_session[:num_stages] == [("reset", n) for n in range(num_stages)]
        assert {kind for kind, _ in events_of_session[num_stages:]} == {"step"}
    expected = int("1" + "".join(str(number) for number in range(num_stages)))
    for number, outputs in enumerate(results):
        chooses = number in (0, num_stages - 1)
        tokens = [None, expected, None, expected] if chooses else [None] * 4
        assert [output.token for output in outputs] == tokens
    assert results[-1][1].output.plane[0].tolist() == [expected] * WIDTH


def test_bits_cross_whatever_they_mean(in_threads: Callable[..., list[Any]]) -> None:
    sent = torch.tensor([float("nan"), -0.0, float("inf"), 1e-40, 3.0])
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        tensor = sent.nan_to_num(7, 8).to(dtype) if dtype is torch.int64 else sent.to(dtype)

        def act(transport: Transport, tensor: torch.Tensor = tensor) -> torch.Tensor:
            if transport.stage == 0:
                transport.send(tensor, 1, "it")
                return tensor
            received = torch.zeros_like(tensor)
            transport.receive(received, 0, "it")
            return received

        first, second = in_threads(2, act)
        assert torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def cast(stage: Stage) -> None:
    executor: Any = stage._executor
    run = executor.step_plane

    def wrapped(*args: Any, **kwargs: Any) -> StepOutput:
        output = run(*args, **kwargs)
        return StepOutput(plane=output.plane.to(torch.bfloat16), logits=output.logits)

    executor.step_plane = wrapped


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (cast, "dtype bfloat16 instead of float32"),
        (lambda stage: setattr(stage._wire, "_nonce", 6), "the nonce of another run"),
        (lambda stage: setattr(stage._wire, "session", 7), "session 7 instead of 1"),
        (
            lambda stage: stage._wire._sequences.update({("sent", 1): 4}),
            "sequence 4 instead of 1",
        ),
    ],
)
def test_a_plane_is_checked_on_arrival(
    in_threads: Callable[..., list[Any]], change: Callable[[Stage], None], named: str
) -> None:
    def act(transport: Transport) -> None:
        stage = stage_of(transport, [])
        stage.open()
        if transport.stage == 0:
            change(stage)
        stage.step(planned(0, 2, logits=True), (1, 2) if transport.stage == 0 else None)

    first, second = in_threads(2, act, timeout_s=1.0)
    assert isinstance(second, PeerError)
    assert "stage 0 sent what is not expected of it" in str(second)
    assert named in str(second)
    assert "where: stage 1" in str(second)
    # And the sender does not wait for ever for a token.
    assert isinstance(first, PeerError)


@pytest.mark.parametrize(
    ("step", "named"),
    [
        (planned(1, 2), "start_position 0 instead of 1"),
        (planned(0, 3), "rows 2 instead of 3"),
    ],
)
def test_a_stage_of_another_schedule_is_refused(
    in_threads: Callable[..., list[Any]], step: PlannedStep, named: str
) -> None:
    def act(transport: Transport) -> None:
        stage = stage_of(transport, [])
        stage.open()
        if transport.stage == 0:
            stage.step(planned(0, 2), (1, 2))
            stage.settle()
        else:
            stage.step(step, None)

    _, second = in_threads(2, act, timeout_s=1.0)
    assert isinstance(second, PeerError)
    assert named in str(second)


def test_a_silent_stage_is_named_in_bounded_time(in_threads: Callable[..., list[Any]]) -> None:
    def act(transport: Transport) -> None:
        stage = stage_of(transport, [])
        stage.open()
        # The other one opens, and then says nothing more.
        if transport.stage == 1:
            stage.step(planned(0, 2, phase="decode"), None)

    _, second = in_threads(2, act, timeout_s=0.5)
    assert isinstance(second, PeerError)
    assert "stage 0 did not send the plane of decode step 0" in str(second)
    assert "within 0.5 s" in str(second)
    assert "where: stage 1" in str(second)


def test_both_sides_of_a_crossing_note_the_same(in_threads: Callable[..., list[Any]]) -> None:
    def act(transport: Transport) -> list[Any]:
        stage = stage_of(transport, [])
        stage.open()
        stage.step(planned(0, 2), (1, 2) if transport.stage == 0 else None)
        stage.settle()
        return [each for each in stage.crossings if each.kind == "plane"]

    sent, received = in_threads(2, act)
    assert [(c.direction, c.peer) for c in (*sent, *received)] == [("sent", 1), ("received", 0)]
    plane = torch.tensor([[10.0] * WIDTH, [20.0] * WIDTH])
    for crossing in (*sent, *received):
        assert crossing.digest == tensor_digest(plane)
        assert (crossing.session, crossing.sequence, crossing.start_position) == (1, 1, 0)
        assert (crossing.num_rows, crossing.dtype, crossing.bytes) == (2, "float32", plane.nbytes)


def test_a_stage_begins_a_chunk_while_the_next_one_computes_the_chunk_before(
    in_threads: Callable[..., list[Any]],
) -> None:
    """The last stage does not take the first plane before the first stage has computed two."""
    two_are_computed = threading.Event()

    def act(transport: Transport) -> list[tuple[str, int]]:
        events: list[tuple[str, int]] = []
        stage = stage_of(transport, events)
        executor: Any = stage._executor
        compute = executor.step

        def step(*args: Any, **kwargs: Any) -> StepOutput:
            output: StepOutput = compute(*args, **kwargs)
            if events.count(("step", 0)) == 2:
                two_are_computed.set()
            return output

        executor.step = step
        stage.open()
        if transport.stage == 1:
            assert two_are_computed.wait(20)
        for start in range(3):
            ids = (start + 1,) if transport.stage == 0 else None
            stage.step(planned(start, 1, logits=start == 2), ids)
        stage.settle()
        return events

    first, last = in_threads(2, act, timeout_s=20)
    assert [first, last] == [[("reset", n), *[("step", n)] * 3] for n in (0, 1)]


def test_restoring_goes_through_all_stages_in_turn(in_threads: Callable[..., list[Any]]) -> None:
    events: list[tuple[str, int]] = []

    def act(transport: Transport) -> None:
        stage = stage_of(transport, events)
        stage.open()
        stage.step(planned(0, 2), (1, 2) if transport.stage == 0 else None)
        stage.restore(lambda: events.append(("restore", transport.stage)), 2)
        if transport.stage == 0:
            events.append(("restored", 0))

    in_threads(3, act)
    restored = [event for event in events if event[0].startswith("restore")]
    assert restored == [("restore", 0), ("restore", 1), ("restore", 2), ("restored", 0)]


def test_a_stage_that_restores_another_position_is_refused(
    in_threads: Callable[..., list[Any]],
) -> None:
    def act(transport: Transport) -> None:
        stage = stage_of(transport, [])
        stage.open()
        stage.restore(lambda: None, 2 + transport.stage)

    _, second = in_threads(2, act, timeout_s=1.0)
    assert isinstance(second, PeerError)
    assert "start_position 2 instead of 3" in str(second)

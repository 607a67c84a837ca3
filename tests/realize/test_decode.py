from dataclasses import replace

import pytest
import torch
from fake_family import SIZE, STATE, WORKLOAD, FakeExecutor

from harness.realize.decode import ExecutionLoop
from harness.realize.recorder import StepRecorder
from harness.realize.schedule import schedule_of


def executor() -> FakeExecutor:
    weight = torch.arange(SIZE * SIZE, dtype=torch.float32).view(SIZE, SIZE).sin()
    return FakeExecutor(weight, {"s": torch.zeros(STATE.shape)})


def run(target: FakeExecutor) -> tuple[ExecutionLoop, StepRecorder]:
    recorder = StepRecorder(None)
    loop = ExecutionLoop(target, {"s": torch.zeros(STATE.shape)}, recorder)
    loop.run(schedule_of(WORKLOAD))
    return loop, recorder


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 64])
def test_schedule_is_ordered_gap_free_and_complete(rows: int) -> None:
    workload = replace(WORKLOAD, prompt_token_ids=tuple(range(7)), chunk_rows=rows)
    schedule = schedule_of(workload)
    position = 0
    for index, chunk in enumerate(schedule.chunks):
        assert chunk.index == index
        assert chunk.start_position == position
        assert 1 <= len(chunk.token_ids) <= rows
        position += len(chunk.token_ids)
    assert position == 7
    assert sum((chunk.token_ids for chunk in schedule.chunks), ()) == tuple(range(7))
    assert [chunk.is_last for chunk in schedule.chunks].count(True) == 1
    assert schedule.chunks[-1].is_last


def test_steps_cover_the_workload() -> None:
    _, recorder = run(executor())
    keys = [(row["repetition"], row["phase"], row["step"]) for row in recorder.steps]
    assert keys == [
        (0, "prefill", 0),
        (0, "prefill", 1),
        *[(repetition, "decode", step) for repetition in range(2) for step in range(3)],
    ]
    assert [row["start_position"] for row in recorder.steps] == [0, 2, 3, 4, 5, 3, 4, 5]
    assert [row["token"] is None for row in recorder.steps] == [True] + [False] * 7


def test_repetitions_repeat_bit_for_bit() -> None:
    _, recorder = run(executor())
    first, second = recorder.steps[2:5], recorder.steps[5:8]
    for a, b in zip(first, second, strict=True):
        assert (a["token"], a["plane_digest"], a["logits_digest"]) == (
            b["token"],
            b["plane_digest"],
            b["logits_digest"],
        )


def test_states_prove_that_decode_changed_and_restore_returned() -> None:
    loop, _ = run(executor())
    digest = {(row["repetition"], row["point"]): row["digest"] for row in loop.states}
    assert digest[0, "before_prefill"] != digest[0, "after_prefill"]
    for repetition in range(2):
        assert digest[repetition, "after_restore"] == digest[0, "after_prefill"]
        assert digest[repetition, "after_decode"] != digest[0, "after_prefill"]
    assert digest[0, "after_decode"] == digest[1, "after_decode"]


class Drifting(FakeExecutor):
    """Keeps a counter outside its declared state."""

    calls = 0

    def step(self, *args: object, **kwargs: object):  # type: ignore[no-untyped-def]
        output = super().step(*args, **kwargs)  # type: ignore[arg-type]
        self.calls += 1
        return replace(output, plane=output.plane + 1e-6 * self.calls)


def test_a_drift_outside_the_state_shows_in_the_digests() -> None:
    weight = torch.arange(SIZE * SIZE, dtype=torch.float32).view(SIZE, SIZE).sin()
    _, recorder = run(Drifting(weight, {"s": torch.zeros(STATE.shape)}))
    assert recorder.steps[2]["plane_digest"] != recorder.steps[5]["plane_digest"]


def test_non_finite_outputs_are_counted() -> None:
    weight = torch.zeros(SIZE, SIZE)
    weight[3, 4] = float("nan")
    weight[3, 5] = float("inf")
    recorder = StepRecorder(None)
    ExecutionLoop(
        FakeExecutor(weight, {"s": torch.zeros(STATE.shape)}),
        {"s": torch.zeros(STATE.shape)},
        recorder,
    ).run(schedule_of(WORKLOAD))
    # The state carries both into the second row of the first chunk.
    assert recorder.steps[0]["num_nan"] == 2
    assert recorder.steps[0]["num_inf"] == 2
    assert recorder.num_nan == sum(int(str(row["num_nan"])) for row in recorder.steps)


def test_the_reference_is_cut_as_the_steps_are() -> None:
    _, clean = run(executor())
    planes: list[torch.Tensor] = []
    logits: list[torch.Tensor] = []
    source = executor()
    schedule = schedule_of(WORKLOAD)
    token = 0
    for chunk in schedule.chunks:
        output = source.step(chunk.token_ids, chunk.start_position, want_logits=True)
        planes.append(output.plane)
        assert output.logits is not None
        logits.append(output.logits)
        token = int(output.logits.argmax())
    decode_planes, decode_logits = [], []
    for step in range(3):
        output = source.step((token,), 3 + step, want_logits=True)
        decode_planes.append(output.plane)
        assert output.logits is not None
        decode_logits.append(output.logits)
        token = int(output.logits.argmax())
    reference = {
        "prefill.plane": torch.cat(planes),
        "prefill.logits": logits[-1],
        "decode.plane": torch.cat(decode_planes),
        "decode.logits": torch.stack(decode_logits),
    }
    recorder = StepRecorder(reference)
    ExecutionLoop(executor(), {"s": torch.zeros(STATE.shape)}, recorder).run(schedule)
    assert len(recorder.correctness) == 2 + 1 + 2 * 3 * 2
    assert all(row["num_different"] == 0 for row in recorder.correctness)
    assert [row["plane_digest"] for row in clean.steps] == [
        row["plane_digest"] for row in recorder.steps
    ]
    reference["decode.plane"][1, 2] += 1.0
    recorder = StepRecorder(reference)
    ExecutionLoop(executor(), {"s": torch.zeros(STATE.shape)}, recorder).run(schedule)
    wrong = [row for row in recorder.correctness if row["num_different"]]
    assert [(row["repetition"], row["phase"], row["step"], row["output"]) for row in wrong] == [
        (0, "decode", 1, "plane"),
        (1, "decode", 1, "plane"),
    ]
    assert wrong[0]["max_abs"] == pytest.approx(1.0, abs=1e-6)

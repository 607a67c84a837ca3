from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_family import SIZE, SPEC, STATE, WORKLOAD, FakeExecutor

from harness.evidence import tables
from harness.evidence.declared import TABLES
from harness.plan.records import Workload
from harness.realize import decode, recorder
from harness.realize.decode import ExecutionLoop
from harness.realize.recorder import StepRecorder
from harness.realize.schedule import schedule_of
from harness.state.ownership import Ownership


def executor() -> FakeExecutor:
    weight = torch.arange(SIZE * SIZE, dtype=torch.float32).view(SIZE, SIZE).sin()
    return FakeExecutor(weight, {"s": torch.zeros(STATE.shape)})


def run(target: FakeExecutor, workload: Workload = WORKLOAD) -> tuple[ExecutionLoop, StepRecorder]:
    recorder = StepRecorder(None)
    loop = ExecutionLoop(target, {"s": torch.zeros(STATE.shape)}, recorder)
    loop.run(schedule_of(workload, SPEC))
    return loop, recorder


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 64])
def test_schedule_is_ordered_gap_free_and_complete(rows: int) -> None:
    workload = replace(WORKLOAD, prompt_token_ids=tuple(range(7)), chunk_rows=rows)
    schedule = schedule_of(workload, SPEC)
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


def test_listed_chunks_are_run_as_they_are_listed() -> None:
    listed = replace(WORKLOAD, chunk_rows=3, prefill_partition=((0, 1), (1, 3)))
    _, cut = run(executor(), listed)
    assert [(row["start_position"], row["num_rows"]) for row in cut.steps[:2]] == [(0, 1), (1, 2)]
    _, whole = run(executor(), replace(WORKLOAD, chunk_rows=3))
    assert [row["token"] for row in cut.steps[1:]] == [row["token"] for row in whole.steps]


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
    ).run(schedule_of(WORKLOAD, SPEC))
    # The state carries both into the second row of the first chunk.
    assert recorder.steps[0]["num_nan"] == 2
    assert recorder.steps[0]["num_inf"] == 2
    assert recorder.num_nan == sum(int(str(row["num_nan"])) for row in recorder.steps)


def test_the_reference_is_cut_as_the_steps_are() -> None:
    _, clean = run(executor())
    planes: list[torch.Tensor] = []
    logits: list[torch.Tensor] = []
    source = executor()
    schedule = schedule_of(WORKLOAD, SPEC)
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


class Owning(FakeExecutor):
    """Owns one slot of each of two pools per position, and counts how often it is asked."""

    asked = 0

    def ownership(self) -> tuple[Ownership, ...]:
        self.asked += 1
        return tuple(
            Ownership(
                pool=pool,
                page_size=1,
                num_pages=num_pages,
                num_live=self.length,
                num_available=num_pages - 1 - self.length,
                num_positions=self.length,
                num_mapped=self.length,
                num_aliased=0,
                num_evicted=0,
                num_leaked=0,
                num_stale=0,
            )
            for pool, num_pages in (("all", 9), ("near", 7))
        )


def owning() -> Owning:
    weight = torch.arange(SIZE * SIZE, dtype=torch.float32).view(SIZE, SIZE).sin()
    return Owning(weight, {"s": torch.zeros(STATE.shape)})


def test_every_pool_is_counted_once_after_every_step() -> None:
    target = owning()
    _, kept = run(target)
    keys = [(row["repetition"], row["phase"], row["step"]) for row in kept.steps]
    assert target.asked == len(keys)
    assert [
        (row["repetition"], row["phase"], row["step"], row["pool"]) for row in kept.ownership
    ] == [(*key, pool) for key in keys for pool in ("all", "near")]
    # After the step: what it wrote is held.
    held = [int(str(row["start_position"])) + int(str(row["num_rows"])) for row in kept.steps]
    assert [row["num_positions"] for row in kept.ownership[::2]] == held
    assert [row["num_available"] for row in kept.ownership[1::2]] == [6 - each for each in held]


def test_rows_of_ownership_are_those_of_the_declared_table() -> None:
    _, kept = run(owning())
    columns = TABLES["ownership"].columns
    assert all(set(row) == set(columns) for row in kept.ownership)
    data, num_rows = tables.encode("ownership", kept.ownership)
    assert num_rows == len(kept.ownership)
    assert tables.decode("ownership", data, where="test") == [
        {name: row[name] for name in columns} for row in kept.ownership
    ]


def test_without_a_pool_there_is_no_row_of_ownership() -> None:
    _, kept = run(executor())
    assert kept.ownership == []
    assert len(kept.steps) == 8


def test_counting_what_is_owned_costs_the_sentinels_and_not_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0

    class Slow(Owning):
        def ownership(self) -> tuple[Ownership, ...]:
            nonlocal now
            now += 1000
            return super().ownership()

        def step(self, *args: object, **kwargs: object):  # type: ignore[no-untyped-def]
            nonlocal now
            now += 7
            return super().step(*args, **kwargs)  # type: ignore[arg-type]

    for module in (decode, recorder):
        monkeypatch.setattr(module, "monotonic_ns", lambda: now)
    _, kept = run(Slow(owning().weight, {"s": torch.zeros(STATE.shape)}))
    assert {(row["duration_ns"], row["sentinel_ns"]) for row in kept.step_times} == {(7, 1000)}


class Recording(FakeExecutor):
    """Remembers what it was fed, and whether logits were asked for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fed: list[tuple[tuple[int, ...], bool]] = []

    def step(
        self, token_ids: Any, start_position: int, *, want_logits: bool, tap: Any = None
    ) -> Any:
        self.fed.append((tuple(token_ids), want_logits))
        return super().step(token_ids, start_position, want_logits=want_logits, tap=tap)


def test_listed_tokens_are_fed_whatever_was_chosen() -> None:
    target = Recording(torch.eye(SIZE), {"s": torch.zeros(STATE.shape)})
    workload = replace(WORKLOAD, decode_token_ids=(5, 0, 9))
    loop = ExecutionLoop(target, {"s": torch.zeros(STATE.shape)}, StepRecorder(None))
    loop.run(schedule_of(workload, SPEC))
    decodes = [ids for ids, _ in target.fed[2:]]
    assert decodes == [(5,), (0,), (9,)] * WORKLOAD.repetitions


def test_without_a_head_nothing_is_chosen_and_no_logits_are_asked_for() -> None:
    target = Recording(torch.eye(SIZE), {"s": torch.zeros(STATE.shape)})
    recorder = StepRecorder(None)
    workload = replace(WORKLOAD, decode_token_ids=(5, 0, 9))
    headless = replace(SPEC, owns_final_norm_head=False)
    ExecutionLoop(target, {"s": torch.zeros(STATE.shape)}, recorder).run(
        schedule_of(workload, headless)
    )
    assert not any(wanted for _, wanted in target.fed)
    assert {row["token"] for row in recorder.steps} == {None}
    loop = ExecutionLoop(target, {"s": torch.zeros(STATE.shape)}, recorder)
    with pytest.raises(ValueError, match="expected a token for decode step 0"):
        loop.run(schedule_of(WORKLOAD, headless))

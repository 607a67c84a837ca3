"""Running the family: the realized model equals the ordinary one, in ranges, chunks and replays."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import qwen_bench
import torch
from qwen_bench import PUBLISHED, MemorySource, Realization

from harness.adapters.qwen3_5_moe.layout import COMMON, ROUTED
from harness.adapters.qwen3_5_moe.reference import QwenReference
from harness.errors import InvalidInputError, NotEvaluableError
from harness.plan.layout import LayoutRequest
from harness.state.errors import CapacityError, GapError

PROMPT = tuple(range(3, 3 + 21))
INVARIANT = "torch-cpu-invariant/1"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, bench_of: Any) -> Any:
    """The bench of a checkpoint in the published mixture; nobody changes it."""
    folder = tmp_path_factory.mktemp("packed")
    return qwen_bench.opened(bench_of, folder, qwen_bench.write(folder))


@pytest.fixture(scope="module")
def executor(bench: Any) -> Any:
    """A float32 model that tests share; each begins with a reset."""
    return executor_of(bench, bench.request())


def executor_of(bench: Any, request: LayoutRequest) -> Any:
    return qwen_bench.realized(bench, MemorySource(bench.stored), request)


def run(executor: Any, chunk: int, *, steps: int = 3) -> list[torch.Tensor]:
    """Planes and logits of a prefill in chunks and greedy decode steps."""
    executor.reset()
    outputs = []
    for start in range(0, len(PROMPT), chunk):
        ids = PROMPT[start : start + chunk]
        output = executor.step(ids, start, want_logits=start + chunk >= len(PROMPT))
        outputs.append(output.plane)
    planes = [torch.cat(outputs)]
    for position in range(len(PROMPT), len(PROMPT) + steps):
        planes.append(output.logits)
        token = executor.choose(output.logits).token
        output = executor.step((token,), position, want_logits=True)
        planes.append(output.plane)
    return [*planes, output.logits]


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def state(executor: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in executor.declared_state().items()}


@pytest.mark.parametrize(
    ("dtype", "staging", "forms"),
    [
        ("float32", "whole", {}),
        ("bfloat16", "none", {}),
        ("bfloat16", "whole", PUBLISHED),
        ("bfloat16", "none", {COMMON: "common-bf16-dequantized", ROUTED: "bf16-dequantized"}),
    ],
    ids=["float32", "bfloat16", "published", "dequantized"],
)
def test_realized_and_ordinary_run_bitwise_equal(
    bench: Any, dtype: str, staging: str, forms: dict[str, str]
) -> None:
    request = replace(bench.request(dtype=dtype, staging=staging), representations=forms)
    realized = executor_of(bench, request)
    ordinary = QwenReference().ordinary(bench.root, request).executor
    assert equal(run(realized, 16), run(ordinary, 16))
    ours, theirs = state(realized), state(ordinary)
    assert ours.keys() == theirs.keys() == {"k", "v", "conv", "recurrent"}
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert all(bool(tensor.any()) for tensor in ours.values())
    assert all(bool(torch.isfinite(output).all()) for output in run(realized, 16))


def test_tables_made_in_each_step_have_the_bits_of_planned_ones(bench: Any) -> None:
    forms = {key: form for key, form in PUBLISHED.items() if form != PUBLISHED["state.runtime"]}
    request = bench.request(dtype="bfloat16")
    planned = executor_of(bench, replace(request, representations=forms))
    made = executor_of(bench, replace(request, representations=PUBLISHED))
    assert equal(run(planned, 16), run(made, 16))


def test_bfloat16_stays_near_float32(bench: Any, executor: Any) -> None:
    exact = run(executor, 64, steps=0)[-1]
    for forms in ({}, PUBLISHED):
        request = replace(bench.request(dtype="bfloat16"), representations=forms)
        rounded = run(executor_of(bench, request), 64, steps=0)[-1]
        # Four layers of a few roundings each, of 2**-8; one expert chosen otherwise would show.
        assert float((rounded - exact).abs().max() / exact.abs().max()) < 0.06


def test_chunks_agree_bitwise_in_the_invariant_set(bench: Any) -> None:
    request = bench.request(kernel_set=INVARIANT, batch_invariant=True)
    executor = executor_of(bench, request)
    whole = run(executor, 64)
    after = state(executor)
    for chunk in (1, 8):
        assert equal(run(executor, chunk), whole)
        assert all(torch.equal(t, after[name]) for name, t in executor.declared_state().items())


def test_chunks_agree_closely_in_the_fast_set(executor: Any) -> None:
    executor.reset()
    whole = run(executor, 64)
    for chunk in (1, 8):
        for ours, theirs in zip(run(executor, chunk), whole, strict=True):
            # Sums in another order, float32.
            assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-4


def test_a_set_that_is_not_invariant_is_not_asked_to_be(bench: Any) -> None:
    request = bench.request(batch_invariant=True)
    with pytest.raises(NotEvaluableError, match="not batch invariant"):
        executor_of(bench, request)


def test_decode_repeats_from_a_snapshot(executor: Any) -> None:
    executor.reset()
    executor.step(PROMPT, 0, want_logits=False)
    snapshot = state(executor)
    first = executor.step((5,), len(PROMPT), want_logits=True).logits
    changed = state(executor)
    assert not torch.equal(changed["recurrent"], snapshot["recurrent"])
    assert not torch.equal(changed["conv"], snapshot["conv"])
    for _ in range(2):
        for name, tensor in executor.declared_state().items():
            tensor.copy_(snapshot[name])
        executor.restore_frontier(len(PROMPT))
        again = executor.step((5,), len(PROMPT), want_logits=True).logits
        assert torch.equal(again, first)
        assert all(torch.equal(t, changed[n]) for n, t in executor.declared_state().items())


def test_a_reset_session_inherits_nothing(executor: Any) -> None:
    executor.reset()
    first = run(executor, 64)
    executor.step((9,), executor.frontier(), want_logits=False)
    assert equal(run(executor, 64), first)
    executor.reset()
    executor.reset()
    assert executor.frontier() == 0
    assert not any(bool(tensor.any()) for tensor in executor.declared_state().values())


def test_rows_are_refused_before_anything_is_written(executor: Any) -> None:
    executor.reset()
    executor.step(PROMPT, 0, want_logits=False)
    before = state(executor)
    for error, start, rows in (
        (InvalidInputError, 0, 1),
        (InvalidInputError, len(PROMPT) - 1, 1),
        (GapError, len(PROMPT) + 1, 1),
        (CapacityError, len(PROMPT), 64),
    ):
        with pytest.raises(error):
            executor.step((1,) * rows, start, want_logits=False)
    assert executor.frontier() == len(PROMPT)
    assert all(torch.equal(t, before[n]) for n, t in executor.declared_state().items())


@pytest.mark.parametrize("cut", [2, 3])
def test_ranges_pass_a_plane_and_equal_the_whole(bench: Any, executor: Any, cut: int) -> None:
    request = bench.request()
    parts = [
        replace(bench.whole, end_layer=cut, owns_final_norm_head=False),
        replace(bench.whole, start_layer=cut, owns_embeddings=False),
    ]
    first, last = (executor_of(bench, replace(request, spec=spec)) for spec in parts)
    executor.reset()
    with pytest.raises(InvalidInputError, match="no embeddings"):
        last.step((1,), 0, want_logits=True)
    position = 0
    for ids in (PROMPT, (4,), (8,)):
        plane = first.step(ids, position, want_logits=True)
        assert plane.logits is None
        ours = last.step_plane(plane.plane, position, want_logits=True)
        theirs = executor.step(ids, position, want_logits=True)
        assert torch.equal(ours.plane, theirs.plane)
        assert torch.equal(ours.logits, theirs.logits)
        position += len(ids)
    assert "k" not in first.declared_state() or cut > 3


@pytest.mark.parametrize("want_logits", [True, False])
def test_an_armed_run_hits_each_boundary_once_in_order(
    bench: Any, executor: Any, want_logits: bool
) -> None:
    executor.reset()
    names = bench.layout.boundaries(bench.config, bench.whole)
    plain = executor.step(PROMPT, 0, want_logits=want_logits)
    executor.reset()
    hits: list[tuple[int, torch.Tensor]] = []
    armed = executor.step(
        PROMPT, 0, want_logits=want_logits, tap=lambda index, tensor: hits.append((index, tensor))
    )
    expected = len(names) if want_logits else len(names) - 2
    assert [index for index, _ in hits] == list(range(expected))
    assert torch.equal(armed.plane, plain.plane)
    seen = {names[index]: tensor for index, tensor in hits}
    rows = len(PROMPT)
    shapes: dict[str, tuple[int, ...]] = {
        "token_ids": (rows,),
        "layers.0.qkvz": (rows, 160),
        "layers.0.ab": (rows, 8),
        "layers.0.conv_state_before": (96, 3),
        "layers.0.conv_out": (rows, 96),
        "layers.0.recurrent_state_after": (4, 8, 16),
        "layers.3.q": (rows, 4, 16),
        "layers.3.gate": (rows, 4, 16),
        "positions": (rows,),
        "layers.3.kv_before": (2, rows, 2, 16),
        "layers.3.kv_written": (2, rows, 2, 16),
        "layers.3.attention_out": (rows, 64),
        "layers.1.router_logits": (rows, 4),
        "layers.1.expert_ids": (rows, 2),
        "layers.1.expert_weights": (rows, 2),
        "layers.1.router_margins": (rows,),
        "layers.1.routed_out": (rows, 32),
        "layers.1.residual_2": (rows, 32),
    }
    assert {name: tuple(seen[name].shape) for name in shapes} == shapes
    # What was seen is what was, not what became of it.
    assert not seen["layers.0.conv_state_before"].any()
    assert seen["layers.0.conv_state_after"].any()
    assert not seen["layers.0.recurrent_state_before"].any()
    assert not seen["layers.3.kv_before"].any()
    assert seen["positions"].tolist() == list(range(rows))
    assert torch.equal(seen["layers.3.residual_2"], armed.plane)
    assert torch.equal(seen["layers.3.k"], seen["layers.3.kv_written"][0])
    assert torch.allclose(seen["layers.1.expert_weights"].sum(dim=1), torch.ones(rows))


def test_equal_router_logits_choose_the_lowest_expert(bench: Any) -> None:
    key = "model.layers.0.mlp.gate.weight"
    tied = MemorySource({**bench.stored, key: torch.zeros_like(bench.stored[key])})
    executor = qwen_bench.realized(bench, tied, bench.request())
    names = bench.layout.boundaries(bench.config, bench.whole)
    seen: dict[str, torch.Tensor] = {}
    executor.step(PROMPT, 0, want_logits=False, tap=lambda i, t: seen.update({names[i]: t}))
    assert torch.equal(seen["layers.0.expert_ids"], torch.tensor([[0, 1]] * len(PROMPT)))
    assert not seen["layers.0.router_margins"].any()
    assert torch.equal(seen["layers.0.expert_weights"], torch.full((len(PROMPT), 2), 0.5))


def test_the_state_has_an_owner_from_its_realization_on(bench: Any) -> None:
    realization = Realization(bench, bench.request())
    realization.populate(MemorySource(bench.stored))
    realized = realization.realized[realization.intent("state.runtime").id]
    executor = realization.executor()
    assert executor.observed_authorities() == {"state.runtime": realized.lineage}
    assert executor.conditions() == {
        "dtype": "float32",
        "kernel_set": "torch-cpu/1",
        "positions": "64",
    }


CHANGES: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("absent", lambda t: t.pop("layers.1.router"), "layers.1.router: absent"),
    (
        "misshapen",
        lambda t: t.update({"layers.0.conv": t["layers.0.conv"][1:]}),
        "layers.0.conv: expected (96, 4) torch.float32, got (95, 4)",
    ),
    (
        "mistyped",
        lambda t: t.update({"layers.0.a_log": t["layers.0.a_log"].half()}),
        "layers.0.a_log: expected (4,) torch.float32, got (4,) torch.float16",
    ),
]


@pytest.mark.parametrize(("change", "text"), [(c, t) for _, c, t in CHANGES])
def test_tensors_that_do_not_fit_are_not_bound(
    bench: Any, change: Callable[[dict[str, Any]], object], text: str
) -> None:
    realization = Realization(bench, bench.request())
    residents = {
        **realization.arena(COMMON).tensors,
        **realization.arena(ROUTED).tensors,
    }
    change(residents)
    adapter = realization.adapter
    derived = {"state.rope": realization.arena("state.rope").tensors}
    session = adapter.make_session("state.runtime", 1, realization.arena("state.runtime").tensors)
    with pytest.raises(InvalidInputError) as error:
        adapter.make_executor(residents, derived, session)
    assert text in str(error.value)


def test_the_written_slice_is_what_was_written_and_not_what_became_of_it(bench: Any) -> None:
    executor = qwen_bench.realized(bench, MemorySource(bench.stored), bench.request())
    mixer = executor._layers[3].mixer
    attend = mixer._attention.attend

    def scribble(q: torch.Tensor, k: torch.Tensor, *rest: Any) -> torch.Tensor:
        out = attend(q, k, *rest)
        k.fill_(7.0)
        return out

    mixer._attention = replace(mixer._attention, attend=scribble)
    names = bench.layout.boundaries(bench.config, bench.whole)
    seen: dict[str, torch.Tensor] = {}
    executor.step(PROMPT, 0, want_logits=False, tap=lambda i, t: seen.update({names[i]: t}))
    assert torch.equal(seen["layers.3.kv_written"][0], seen["layers.3.k"])

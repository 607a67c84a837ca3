from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.adapters.llama.config import read_config
from harness.adapters.llama.model import LlamaExecutor
from harness.adapters.llama.reference import LlamaReference
from harness.adapters.llama.rope import rope_tables
from harness.errors import InvalidInputError, NotEvaluableError
from harness.state.accounting import TensorAccounting
from harness.state.digests import tensor_bytes
from harness.state.session import CapacityError, GapError, Session
from kernels.native import library
from kernels.native.sources import built_digest

NATIVE = pytest.param(
    "native-cpu/1",
    marks=pytest.mark.skipif(built_digest() is None, reason="the native kernels are not built"),
)
PROMPT = tuple((5 * i * i + i + 2) % 53 for i in range(21))


def executor_of(bench: Any, **settings: Any) -> LlamaExecutor:
    return LlamaReference().ordinary(bench.root, bench.request(**settings)).executor


def prefill(executor: Any, chunk: int) -> Any:
    executor.reset()
    planes = []
    for start in range(0, len(PROMPT), chunk):
        output = executor.step(PROMPT[start : start + chunk], start, want_logits=True)
        planes.append(output.plane.clone())
    return torch.cat(planes), output.logits


@pytest.mark.parametrize("chunk", [1, 2, 7, 20])
def test_chunked_prefill_is_close_to_one_shot(make_bench: Callable[..., Any], chunk: int) -> None:
    executor = executor_of(make_bench())
    plane, logits = prefill(executor, len(PROMPT))
    cache = {name: tensor.clone() for name, tensor in executor.declared_state().items()}
    chunked_plane, chunked_logits = prefill(executor, chunk)
    # float32 products of other row counts sum in another order.
    torch.testing.assert_close(chunked_plane, plane, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(chunked_logits, logits, rtol=1e-4, atol=1e-4)
    for name, tensor in executor.declared_state().items():
        torch.testing.assert_close(tensor, cache[name], rtol=1e-4, atol=1e-4)
    assert executor.frontier() == len(PROMPT)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("invariant", ["torch-cpu-invariant/1", NATIVE])
def test_an_invariant_set_gives_every_cut_of_a_prompt_the_same_bits(
    make_bench: Callable[..., Any], dtype: str, invariant: str
) -> None:
    """And the fast set does not: in float32, token by token differs from one shot."""
    bench = make_bench()

    def bits(kernel_set: str, chunk: int) -> list[bytes]:
        executor = executor_of(bench, dtype=dtype, kernel_set=kernel_set)
        tensors = (*prefill(executor, chunk), *executor.declared_state().values())
        return [bytes(tensor_bytes(tensor)) for tensor in tensors]

    assert bits(invariant, 1) == bits(invariant, 7) == bits(invariant, len(PROMPT))
    if dtype == "float32":
        assert bits("torch-cpu/1", 1) != bits("torch-cpu/1", len(PROMPT))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("want_logits", [True, False])
@pytest.mark.parametrize("kernel_set", ["torch-cpu/1", NATIVE])
def test_each_boundary_is_hit_once_in_order_and_changes_nothing(
    make_bench: Callable[..., Any], dtype: str, rows: int, want_logits: bool, kernel_set: str
) -> None:
    bench = make_bench()
    executor = executor_of(bench, dtype=dtype, kernel_set=kernel_set)
    executor.step(PROMPT[:4], 0, want_logits=False)
    for tensor in executor.declared_state().values():
        # What an owner before left there, so that a slice before the write is not just zeros.
        tensor[:, 4:] = 0.5
    before = {name: tensor.clone() for name, tensor in executor.declared_state().items()}
    idle = executor.step(PROMPT[4 : 4 + rows], 4, want_logits=want_logits)
    for name, tensor in executor.declared_state().items():
        tensor.copy_(before[name])
    executor.restore_frontier(4)
    hits: list[tuple[int, torch.Tensor]] = []
    armed = executor.step(
        PROMPT[4 : 4 + rows], 4, want_logits=want_logits, tap=lambda i, t: hits.append((i, t))
    )
    names = bench.layout.boundaries(bench.config, bench.whole)
    expected = names if want_logits else names[:-2]
    assert [index for index, _ in hits] == list(range(len(expected)))
    assert torch.equal(armed.plane, idle.plane)
    seen = {names[index]: tensor for index, tensor in hits}
    assert seen["token_ids"].tolist() == list(PROMPT[4 : 4 + rows])
    assert torch.equal(seen["layers.1.residual_2"], armed.plane)
    assert torch.equal(seen["layers.0.residual_1"], seen["embedding"] + seen["layers.0.o_proj"])
    state = executor.declared_state()
    written = torch.stack((state["k"][1, 4 : 4 + rows], state["v"][1, 4 : 4 + rows]))
    assert torch.equal(seen["layers.1.kv_written"], written)
    assert torch.equal(seen["layers.1.kv_before"], torch.full_like(written, 0.5))
    assert seen["positions"].tolist() == list(range(4, 4 + rows))
    assert torch.equal(seen["layers.1.kv_written"][0], seen["layers.1.k"])
    assert torch.equal(seen["layers.1.kv_written"][1], seen["layers.1.v"])
    assert seen["layers.0.q"].shape == (rows, 4, 6)
    assert seen["layers.0.gate_up"].shape == (rows, 80)
    if want_logits:
        assert armed.logits is not None
        assert idle.logits is not None
        assert armed.logits.dtype == torch.float32
        assert torch.equal(armed.logits, idle.logits)
        assert torch.equal(seen["logits"], armed.logits)
        assert seen["final_norm"].shape == (1, 24)
    else:
        assert armed.logits is None


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_ranges_in_turn_equal_the_whole(
    make_bench: Callable[..., Any], tied: bool, dtype: str
) -> None:
    bench = make_bench(tie_word_embeddings=tied)
    whole = executor_of(bench, dtype=dtype)
    first = executor_of(
        bench, dtype=dtype, spec=replace(bench.whole, end_layer=1, owns_final_norm_head=False)
    )
    last = executor_of(
        bench, dtype=dtype, spec=replace(bench.whole, start_layer=1, owns_embeddings=False)
    )
    for ids, start in ((PROMPT[:9], 0), (PROMPT[9:10], 9)):
        expected = whole.step(ids, start, want_logits=True)
        between = first.step(ids, start, want_logits=True)
        assert between.logits is None
        hits: dict[int, torch.Tensor] = {}
        actual = last.step_plane(between.plane, start, want_logits=True, tap=hits.__setitem__)
        assert list(hits) == list(range(2 + 13 + 2))
        assert torch.equal(actual.plane, expected.plane)
        assert torch.equal(actual.logits, expected.logits)
    with pytest.raises(InvalidInputError, match="no embeddings"):
        last.step((1,), 10, want_logits=True)
    with pytest.raises(InvalidInputError, match="does not fit"):
        last.step_plane(torch.zeros(1, 23), 10, want_logits=True)
    assert last.frontier() == 10


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_decode_from_a_restored_snapshot_repeats_bitwise(
    make_bench: Callable[..., Any], dtype: str
) -> None:
    executor = executor_of(make_bench(), dtype=dtype)
    executor.step(PROMPT, 0, want_logits=False)
    snapshot = {name: tensor.clone() for name, tensor in executor.declared_state().items()}
    runs = []
    for _ in range(3):
        for name, tensor in executor.declared_state().items():
            tensor.copy_(snapshot[name])
        executor.restore_frontier(len(PROMPT))
        token, seen = 1, []
        for step in range(6):
            output = executor.step((token,), len(PROMPT) + step, want_logits=True)
            assert output.logits is not None
            token = int(output.logits.argmax())
            seen.append((token, output.logits.clone(), output.plane.clone()))
        runs.append(seen)
        assert not torch.equal(executor.declared_state()["k"], snapshot["k"])
    for run in runs[1:]:
        for (token, logits, plane), (token_1, logits_1, plane_1) in zip(run, runs[0], strict=True):
            assert token == token_1
            assert torch.equal(logits, logits_1)
            assert torch.equal(plane, plane_1)


def test_reset_leaves_nothing_behind(make_bench: Callable[..., Any]) -> None:
    executor = executor_of(make_bench())
    first = executor.step(PROMPT, 0, want_logits=True)
    executor.reset()
    assert executor.frontier() == 0
    assert not any(tensor.any() for tensor in executor.declared_state().values())
    again = executor.step(PROMPT, 0, want_logits=True)
    assert torch.equal(first.plane, again.plane)


@pytest.mark.parametrize(
    ("ids", "start", "error"),
    [
        ((1,), 6, GapError),
        ((1, 2, 3), 5, CapacityError),
        ((), 5, InvalidInputError),
        ((1, 53), 5, InvalidInputError),
        ((-1,), 5, InvalidInputError),
    ],
)
def test_a_refused_step_writes_nothing(
    make_bench: Callable[..., Any], ids: tuple[int, ...], start: int, error: type[Exception]
) -> None:
    executor = executor_of(make_bench(), prompt=(1,), max_positions=7)
    executor.step(PROMPT[:5], 0, want_logits=False)
    before = {name: tensor.clone() for name, tensor in executor.declared_state().items()}
    with pytest.raises(error):
        executor.step(ids, start, want_logits=True)
    assert executor.frontier() == 5
    for name, tensor in executor.declared_state().items():
        assert torch.equal(tensor, before[name])
    executor.step(PROMPT[5:7], 5, want_logits=False)


def test_authority_is_what_the_session_holds(make_bench: Callable[..., Any]) -> None:
    executor = executor_of(make_bench())
    assert executor.observed_authorities() == {"state.kv": "state.kv@epoch-1"}
    executor._session.lineage = "state.kv@epoch-2"
    assert executor.observed_authorities() == {"state.kv": "state.kv@epoch-2"}


def test_the_reference_kernel_set_runs_the_whole_model(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(attention_bias=True)
    fast, oracle = (
        executor_of(bench, kernel_set=name).step(PROMPT, 0, want_logits=True)
        for name in ("torch-cpu/1", "torch-reference/1")
    )
    torch.testing.assert_close(fast.plane, oracle.plane, rtol=1e-4, atol=1e-4)
    assert fast.logits is not None
    assert int(fast.logits.argmax()) == int(oracle.logits.argmax())


def test_binding_lists_every_tensor_that_does_not_fit(make_bench: Callable[..., Any]) -> None:
    bench = make_bench()
    request = bench.request()
    residents = LlamaReference().ordinary(bench.root, request).residents
    weights = dict(residents["llama-merged-float32"])
    weights["layers.0.qkv"] = weights["layers.0.qkv"][:-1]
    weights["layers.1.down"] = weights["layers.1.down"].bfloat16()
    del weights["final_norm"]
    session = Session(
        logical_state_id="state.kv",
        epoch=1,
        tensors={"k": torch.zeros(2, 64, 2, 6), "v": torch.zeros(2, 64, 2, 7)},
        capacity_positions=64,
    )
    with pytest.raises(InvalidInputError) as error:
        LlamaExecutor(
            config=read_config(bench.config),
            spec=bench.whole,
            kernel_set="torch-cpu/1",
            residents=weights,
            rope_tables=rope_tables(read_config(bench.config), 63),
            session=session,
        )
    got = str(error.value)
    for name in ("layers.0.qkv", "layers.1.down", "final_norm", "v:", "cos", "sin"):
        assert name in got
    assert "layers.0.o:" not in got


@pytest.mark.parametrize("kernel_set", ["torch-cpu/1", NATIVE])
def test_nothing_but_resident_tensors_lives_between_steps(
    make_bench: Callable[..., Any], kernel_set: str
) -> None:
    executor = executor_of(make_bench(), dtype="bfloat16", kernel_set=kernel_set)
    accounting = TensorAccounting()
    output = executor.step(PROMPT, 0, want_logits=True)
    assert accounting.unplanned_bytes([]) >= output.plane.nbytes
    del output
    executor.step((1,), len(PROMPT), want_logits=True)
    assert accounting.unplanned_bytes([]) == 0


def test_the_written_slice_is_what_was_written_and_not_what_became_of_it(
    make_bench: Callable[..., Any],
) -> None:
    bench = make_bench()
    executor = executor_of(bench)
    attend = executor._attention.attend

    def scribble(q: torch.Tensor, k: torch.Tensor, *rest: Any) -> torch.Tensor:
        out = attend(q, k, *rest)
        k.fill_(7.0)
        return out

    executor._attention = replace(executor._attention, attend=scribble)
    names = bench.layout.boundaries(bench.config, bench.whole)
    seen: dict[str, torch.Tensor] = {}
    executor.step(PROMPT, 0, want_logits=False, tap=lambda i, t: seen.update({names[i]: t}))
    assert torch.equal(seen["layers.1.kv_written"][0], seen["layers.1.k"])


@pytest.mark.skipif(built_digest() is None, reason="the native kernels are not built")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_one_native_call_has_the_bits_of_single_ops(
    make_bench: Callable[..., Any], dtype: str, with_bias: bool
) -> None:
    bench = make_bench(attention_bias=with_bias, mlp_bias=with_bias)
    executor = executor_of(bench, dtype=dtype, kernel_set="native-cpu/1")
    in_one = [tensor.clone() for tensor in prefill(executor, 5)]
    state = {name: tensor.clone() for name, tensor in executor.declared_state().items()}
    executor._native_layers = executor._native_head = None
    for ours, theirs in zip(in_one, prefill(executor, 5), strict=True):
        assert torch.equal(ours, theirs)
    for name, tensor in executor.declared_state().items():
        assert torch.equal(tensor, state[name])


@pytest.mark.skipif(built_digest() is None, reason="the native kernels are not built")
def test_the_native_set_is_close_to_the_reference(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(attention_bias=True, mlp_bias=True)
    plane, logits = prefill(executor_of(bench, kernel_set="native-cpu/1"), 5)
    expected_plane, expected_logits = prefill(
        executor_of(bench, kernel_set="torch-reference/1"), len(PROMPT)
    )
    torch.testing.assert_close(plane, expected_plane, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(built_digest() is None, reason="the native kernels are not built")
@pytest.mark.parametrize("group", ["residents", "rope_tables", "state"])
def test_one_native_call_takes_no_strided_tensors(
    make_bench: Callable[..., Any], group: str
) -> None:
    bench = make_bench()
    request = bench.request()
    config = read_config(bench.config)
    residents = LlamaReference().ordinary(bench.root, request).residents["llama-merged-float32"]
    groups = {
        "residents": dict(residents),
        "rope_tables": dict(rope_tables(config, 64)),
        "state": {name: torch.zeros(2, 64, 2, config.head_dim) for name in ("k", "v")},
    }
    name, tensor = next((n, t) for n, t in groups[group].items() if t.ndim > 1)
    groups[group][name] = tensor.mT.contiguous().mT
    session = Session(
        logical_state_id="state.kv", epoch=1, tensors=groups["state"], capacity_positions=64
    )
    with pytest.raises(InvalidInputError, match=f"not contiguous.*\n.*{name}"):
        LlamaExecutor(
            config=config,
            spec=bench.whole,
            kernel_set="native-cpu/1",
            residents=groups["residents"],
            rope_tables=groups["rope_tables"],
            session=session,
        )


def test_an_executor_says_which_library_computes(
    make_bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    assert "kernel_library" not in executor_of(bench).conditions()
    if built_digest() is not None:
        found = executor_of(bench, kernel_set="native-cpu/1").conditions()
        assert found["kernel_library"] == library.library_digest()
    monkeypatch.setattr(library, "LIBRARY", bench.root / "nowhere.so")
    library.library.cache_clear()
    with pytest.raises(NotEvaluableError, match="pip install"):
        executor_of(bench, kernel_set="native-cpu/1")
    library.library.cache_clear()

"""The forward pass: boundaries, roles, state and head, over tiny random checkpoints."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import kernels.linear.api as linear
import kernels.rms_norm.api as rms_norm
import kernels.softcap.api as softcap
from harness.adapters.gemma.config import AttentionKind, read_config
from harness.adapters.gemma.model import GemmaExecutor
from harness.adapters.gemma.reference import load_ordinary
from harness.adapters.gemma.rope import frequencies, rope_tables
from harness.errors import InvalidInputError
from harness.state.errors import UnmappedError
from harness.state.session import CapacityError, GapError

PROMPT = tuple((5 * i * i + i + 2) % 53 for i in range(21))
SETS = ("torch-cpu/1", "torch-cpu-invariant/1", "torch-reference/1")


def state_of(executor: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in executor.declared_state().items()}


def boundaries_of(
    executor: Any, bench: Any, spec: Any, run: Callable[..., Any]
) -> tuple[dict[str, torch.Tensor], Any]:
    """Tensors by boundary name of one armed run, and its output; each is hit once, in order."""
    hits: list[tuple[int, torch.Tensor]] = []
    output = run(tap=lambda index, tensor: hits.append((index, tensor.clone())))
    names = bench.layout.boundaries(bench.config, spec)
    expected = names if output.logits is not None or not spec.owns_final_norm_head else names[:-2]
    assert [index for index, _ in hits] == list(range(len(expected)))
    return {names[index]: tensor for index, tensor in hits}, output


@pytest.mark.parametrize("generation", [3, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("rows", "want_logits"), [(1, True), (6, True), (6, False)])
def test_each_boundary_is_hit_once_in_order_and_changes_nothing(
    make_gemma: Callable[..., Any],
    gemma_executor: Callable[..., Any],
    generation: int,
    dtype: str,
    rows: int,
    want_logits: bool,
) -> None:
    bench = make_gemma(generation)
    executor = gemma_executor(bench, dtype=dtype, page_size=4)
    executor.step(PROMPT[:9], 0, want_logits=False)
    for name, tensor in executor.declared_state().items():
        if name.endswith((".k", ".v")):
            # What an owner before left there, so that a slice before the write is not just zeros.
            tensor[:, 4 + 9 :] = 0.5
    before, ids = state_of(executor), PROMPT[9 : 9 + rows]
    idle = executor.step(ids, 9, want_logits=want_logits)
    after = state_of(executor)
    for name, tensor in executor.declared_state().items():
        tensor.copy_(before[name])
    executor.restore_frontier(9)
    seen, armed = boundaries_of(
        executor,
        bench,
        bench.whole,
        lambda tap: executor.step(ids, 9, want_logits=want_logits, tap=tap),
    )
    assert torch.equal(armed.plane, idle.plane)
    for name, tensor in executor.declared_state().items():
        assert torch.equal(tensor, after[name]), name
    assert seen["token_ids"].tolist() == list(ids)
    assert seen["positions"].tolist() == list(range(9, 9 + rows))
    # Pages of four, from the second on: the slot of a position is its number plus four.
    assert seen["page_table"].tolist() == list(range(4, 4 + 9 + rows))
    assert seen["layers.0.slots"].tolist() == list(range(4 + 2, 4 + 9 + rows))
    assert torch.equal(seen["layers.1.slots"], seen["page_table"])
    for layer, kind, index in ((0, "swa", 0), (1, "full", 0), (2, "full", 1)):
        prefix = f"layers.{layer}."
        slots = slice(4 + 9, 4 + 9 + rows)
        for part, tensors in (("kv_before", before), ("kv_written", after)):
            expected = [tensors[f"{kind}.{name}"][index, slots] for name in ("k", "v")]
            assert torch.equal(seen[prefix + part], torch.stack(expected))
        assert (seen[prefix + "kv_before"] == 0.5).all()
        written = torch.stack((seen[prefix + "k"], seen[prefix + "v"]))
        assert torch.equal(seen[prefix + "kv_written"], written)
    assert torch.equal(
        seen["layers.0.residual_1"], seen["embedding"] + seen["layers.0.post_attention_norm"]
    )
    last = "layer_scalar" if generation == 4 else "residual_2"
    assert torch.equal(seen[f"layers.2.{last}"], armed.plane)
    assert seen["layers.0.q"].shape == (rows, 4, 8)
    assert seen["layers.0.gate_up"].shape == (rows, 80)
    assert (armed.logits is None) == (idle.logits is None) == (not want_logits)
    if want_logits:
        assert armed.logits.dtype == torch.float32
        assert torch.equal(armed.logits, idle.logits)
        assert torch.equal(seen["logits"], armed.logits)


@pytest.mark.parametrize("generation", [3, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_roles_in_turn_equal_the_single_one(
    make_gemma: Callable[..., Any],
    gemma_executor: Callable[..., Any],
    generation: int,
    dtype: str,
) -> None:
    bench = make_gemma(generation)
    bounds = ((0, 1), (1, 2), (2, 3))
    specs = [
        replace(
            bench.whole,
            start_layer=start,
            end_layer=end,
            owns_embeddings=start == 0,
            owns_final_norm_head=end == 3,
        )
        for start, end in bounds
    ]
    single = gemma_executor(bench, dtype=dtype)
    stages = [gemma_executor(bench, dtype=dtype, spec=spec) for spec in specs]
    for start, ids in ((0, PROMPT[:12]), (12, PROMPT[12:17]), (17, PROMPT[17:18])):
        expected = single.step(ids, start, want_logits=True)
        output = stages[0].step(ids, start, want_logits=True)
        for stage in stages[1:]:
            assert output.logits is None
            output = stage.step_plane(output.plane, start, want_logits=True)
        assert torch.equal(output.plane, expected.plane)
        assert torch.equal(output.logits, expected.logits)
    # Each stage's pool has what the whole one has of its layer.
    whole = single.declared_state()
    for stage, (kind, index) in zip(stages, (("swa", 0), ("full", 0), ("full", 1)), strict=True):
        for part in ("k", "v"):
            name = f"{kind}.{part}"
            assert torch.equal(stage.declared_state()[name][0], whole[name][index])
    with pytest.raises(InvalidInputError, match="no embeddings"):
        stages[1].step((1,), 18, want_logits=False)
    with pytest.raises(InvalidInputError, match="does not fit"):
        stages[1].step_plane(torch.zeros(1, 23), 18, want_logits=False)
    assert stages[1].frontier() == 18


def test_layers_keep_their_global_numbers(
    make_gemma: Callable[..., Any], gemma_executor: Callable[..., Any]
) -> None:
    bench = make_gemma(4)
    spec = replace(bench.whole, start_layer=2, owns_embeddings=False)
    executor = gemma_executor(bench, spec=spec)
    plane = torch.randn(3, 24, generator=torch.Generator().manual_seed(1))
    seen, _ = boundaries_of(
        executor,
        bench,
        spec,
        lambda tap: executor.step_plane(plane, 0, want_logits=True, tap=tap),
    )
    assert {name.split(".")[1] for name in seen if name.startswith("layers.")} == {"2"}
    weights = gemma_weights(bench)
    normed = _rms_norm(plane, weights["model.layers.2.input_layernorm.weight"])
    torch.testing.assert_close(seen["layers.2.input_norm"], normed, rtol=1e-5, atol=1e-6)


def gemma_weights(bench: Any) -> dict[str, torch.Tensor]:
    return load_file(bench.root / "model.safetensors")


def _rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    wide = x.double()
    wide = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return (wide if weight is None else wide * weight.double()).float()


def test_shared_values_are_the_raw_key_projection(
    make_gemma: Callable[..., Any], gemma_executor: Callable[..., Any]
) -> None:
    bench = make_gemma(4)
    executor, weights = gemma_executor(bench), gemma_weights(bench)
    seen, _ = boundaries_of(
        executor,
        bench,
        bench.whole,
        lambda tap: executor.step(PROMPT, 0, want_logits=True, tap=tap),
    )
    for layer in (1, 2):
        prefix = f"layers.{layer}."
        key = weights[f"model.{prefix}self_attn.k_proj.weight"]
        raw = (seen[prefix + "input_norm"].double() @ key.double().T).float()
        rows = seen[prefix + "qkv"]
        # Bitwise the same rows, as the key's before its norm and rotation.
        assert torch.equal(rows[:, 48:60], rows[:, 60:72])
        torch.testing.assert_close(rows[:, 60:72], raw, rtol=1e-4, atol=1e-5)
        value = seen[prefix + "v"].flatten(1)
        torch.testing.assert_close(value, _rms_norm(raw), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(value, seen[prefix + "k"].flatten(1), atol=1e-2)


def test_a_chunk_reads_its_own_rows_back_from_the_cache(
    make_gemma: Callable[..., Any], gemma_executor: Callable[..., Any]
) -> None:
    """Were a chunk's own keys handed over directly, what the cache holds would not show."""
    bench = make_gemma(3)

    class Emptied:
        """Stores nothing for one row."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def store(self, k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any) -> None:
            self._inner.store(k, v, k_cache, v_cache, slots)
            k_cache[slots[2]] = 0
            v_cache[slots[2]] = 0

    sound, faulty = gemma_executor(bench), gemma_executor(bench)
    faulty._kv_cache = Emptied(faulty._kv_cache)
    expected = sound.step(PROMPT[:6], 0, want_logits=False).plane
    plane = faulty.step(PROMPT[:6], 0, want_logits=False).plane
    assert torch.equal(plane[:2], expected[:2])
    assert not any(torch.equal(plane[row], expected[row]) for row in range(2, 6))


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("generation", [3, 4])
def test_logits_are_the_last_row_of_the_whole_product(
    make_gemma: Callable[..., Any],
    gemma_executor: Callable[..., Any],
    generation: int,
    kernel_set: str,
) -> None:
    bench = make_gemma(generation)
    for dtype in ("float32", "bfloat16"):
        executor = gemma_executor(bench, dtype=dtype, kernel_set=kernel_set)
        output = executor.step(PROMPT, 0, want_logits=True)
        # Copied: a file's tensors lie at any address, and a product may depend on that.
        weights = {k: t.clone().to(output.plane.dtype) for k, t in gemma_weights(bench).items()}
        normed = rms_norm.rms_norm(
            output.plane,
            weights["model.norm.weight"],
            1e-6,
            generation == 3,
            kernel_set=kernel_set,
        )
        table = weights["model.embed_tokens.weight"]
        products = linear.linear(normed, table, kernel_set=kernel_set)
        assert products.shape == (len(PROMPT), 53)
        if generation == 4:
            softcap.softcap_(products, 4.0, kernel_set=kernel_set)
        assert torch.equal(output.logits, products.float()[-1])
        # What nobody asked for is not kept alive by the row that was.
        assert output.logits.untyped_storage().nbytes() == 53 * 4


def test_softcap_bounds_logits_and_keeps_what_is_not_a_number(
    make_gemma: Callable[..., Any], gemma_executor: Callable[..., Any]
) -> None:
    bench = make_gemma(4)
    executor = gemma_executor(bench)
    logits = executor.step(PROMPT, 0, want_logits=True).logits
    assert float(logits.abs().max()) <= 4.0
    executor.reset()
    executor._head[7] = float("nan")
    logits = executor.step(PROMPT, 0, want_logits=True).logits
    assert logits.isnan().tolist() == [token == 7 for token in range(53)]


def test_a_gap_and_an_exhausted_pool_write_nothing(
    make_gemma: Callable[..., Any], gemma_executor: Callable[..., Any]
) -> None:
    executor = gemma_executor(make_gemma(4), max_positions=10)
    executor.step(PROMPT[:6], 0, want_logits=False)
    before = state_of(executor)
    with pytest.raises(GapError):
        executor.step((1,), 7, want_logits=True)
    with pytest.raises(CapacityError):
        executor.step((1, 2, 3, 4, 5), 6, want_logits=True)
    with pytest.raises(InvalidInputError, match="token ids"):
        executor.step((53,), 6, want_logits=True)
    assert executor.frontier() == 6
    for name, tensor in executor.declared_state().items():
        assert torch.equal(tensor, before[name]), name
    executor.step((1, 2, 3, 4), 6, want_logits=True)
    assert executor.frontier() == 10


@pytest.mark.parametrize("page_size", [None, 4])
def test_reset_and_restore_leave_nothing_behind(
    make_gemma: Callable[..., Any], gemma_executor: Callable[..., Any], page_size: int | None
) -> None:
    executor = gemma_executor(make_gemma(4), page_size=page_size)
    first = executor.step(PROMPT, 0, want_logits=True)
    state = state_of(executor)
    runs = []
    for _ in range(2):
        for name, tensor in executor.declared_state().items():
            tensor.copy_(state[name])
        executor.restore_frontier(len(PROMPT))
        runs.append(
            [executor.step((t,), len(PROMPT) + t, want_logits=True).logits for t in range(11)]
        )
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    executor.reset()
    assert executor.frontier() == 0
    again = executor.step(PROMPT, 0, want_logits=True)
    assert torch.equal(again.plane, first.plane)
    for name, tensor in executor.declared_state().items():
        assert torch.equal(tensor, state[name]), name


def test_an_evicted_position_cannot_be_run_again(
    make_gemma: Callable[..., Any], gemma_executor: Callable[..., Any]
) -> None:
    bench = make_gemma(4)
    (policy,) = bench.layout.eviction_policies
    executor = gemma_executor(bench, eviction_policy=policy, chunk_rows=7)
    for start in range(0, 21, 7):
        executor.step(PROMPT[start : start + 7], start, want_logits=False)
    with pytest.raises(UnmappedError):
        executor.step(PROMPT[10:14], 10, want_logits=False)


def test_new_rows_beside_one_that_reads_evicted_positions_change_nothing(
    make_gemma: Callable[..., Any], gemma_executor: Callable[..., Any]
) -> None:
    """Were the new rows held, a later step would read keys and values that nobody wrote."""
    bench = make_gemma(4)
    (policy,) = bench.layout.eviction_policies
    settings: dict[str, Any] = {"eviction_policy": policy, "chunk_rows": 7, "max_positions": 30}
    executor = gemma_executor(bench, **settings)
    for start in range(0, 21, 7):
        executor.step(PROMPT[start : start + 7], start, want_logits=False)
    before = {name: tensor.clone() for name, tensor in executor.declared_state().items()}
    with pytest.raises(UnmappedError):
        executor.step(PROMPT[:5], 18, want_logits=False)
    assert executor.frontier() == 21
    for name, tensor in executor.declared_state().items():
        assert torch.equal(tensor, before[name]), name


def test_tensors_that_do_not_fit_are_all_named(
    make_gemma: Callable[..., Any], gemma_executor: Callable[..., Any]
) -> None:
    bench = make_gemma(4)
    config = read_config(bench.config)
    weights, table = load_ordinary(bench.root, config, bench.whole, torch.float32)
    residents = weights | table
    del residents["layers.1.scalar"]
    residents["layers.0.qkv"] = residents["layers.0.qkv"].bfloat16()
    session = gemma_executor(bench)._session
    tables = rope_tables(config, bench.whole, 9)
    with pytest.raises(InvalidInputError) as caught:
        GemmaExecutor(
            config=config,
            spec=bench.whole,
            kernel_set="torch-cpu/1",
            residents=residents,
            rope_tables=tables,
            session=session,
        )
    for name in ("layers.1.scalar: absent", "layers.0.qkv", "full.cos", "swa.sin"):
        assert name in str(caught.value)
    other = replace(config, window=9)
    with pytest.raises(InvalidInputError, match="pool does not fit"):
        GemmaExecutor(
            config=other,
            spec=bench.whole,
            kernel_set="torch-cpu/1",
            residents=weights | table,
            rope_tables=rope_tables(config, bench.whole, 64),
            session=session,
        )


def test_frequencies() -> None:
    kind = AttentionKind(
        num_kv_heads=1,
        head_dim=8,
        values_from_keys=False,
        rope_theta=16.0,
        rope_factor=2.0,
        rope_pairs=3,
    )
    expected = torch.tensor([0.5, 0.25, 0.125, 0.0], dtype=torch.float64)
    torch.testing.assert_close(frequencies(kind), expected, rtol=1e-15, atol=0)


def test_the_written_slice_is_what_was_written_and_not_what_became_of_it(
    make_gemma: Callable[..., Any], gemma_executor: Callable[..., Any]
) -> None:
    bench = make_gemma(3)
    executor = gemma_executor(bench)
    attend = executor._attention.attend

    def scribble(q: torch.Tensor, k: torch.Tensor, *rest: Any) -> torch.Tensor:
        out = attend(q, k, *rest)
        k.fill_(7.0)
        return out

    executor._attention = replace(executor._attention, attend=scribble, paged=None)
    seen, _ = boundaries_of(
        executor,
        bench,
        bench.whole,
        lambda tap: executor.step(PROMPT[:6], 0, want_logits=False, tap=tap),
    )
    assert torch.equal(seen["layers.1.kv_written"][0], seen["layers.1.k"])

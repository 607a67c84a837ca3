import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.adapters.llama.layout import LlamaLayout
from harness.adapters.llama.load import LlamaAdapter
from harness.adapters.llama.reference import LlamaReference, load_ordinary
from harness.errors import CheckpointError, NotEvaluableError, PlanError, ResourceError
from harness.plan.records import Execution, Materialization
from kernels.kernel_sets import MissingTritonError, UnknownKernelSetError
from kernels.linear.api import select

STAGINGS: dict[str, dict[str, Any]] = {
    "whole": {"staging": "whole"},
    "streaming": {"staging": "streaming", "window_bytes": 53 * 24 * 4},
    "none": {"staging": "none"},
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Realization:
    """All of a request's materializations, allocated, by state and representation."""

    def __init__(self, bench: Any, request: Any, **context: Any) -> None:
        self.context = bench.context(request, **context)
        self.adapter = LlamaAdapter()
        self.adapter.begin(self.context)
        self.intents: list[Materialization] = bench.intents(self.context)
        self.realized = {intent.id: self.adapter.allocate(intent) for intent in self.intents}

    def populate(self, source: Any) -> None:
        for intent in self.intents:
            self.adapter.populate(intent, source)

    def intent(self, prefix: str) -> Materialization:
        return next(i for i in self.intents if i.representation.startswith(prefix))

    def tensors(self, prefix: str) -> Any:
        return self.realized[self.intent(prefix).id].arena.tensors


class Faulty:
    """A source that leaves one key's rows unwritten from ``first_row`` on."""

    def __init__(self, inner: Any, key: str, first_row: int = 0) -> None:
        self._inner, self._key, self._first_row = inner, key, first_row

    def begin(self, key: str, target: torch.Tensor) -> Callable[[], None]:
        if key != self._key:
            return self._inner.begin(key, target)
        whole = torch.empty_like(target)
        self._inner.begin(key, whole)()
        target[: self._first_row].copy_(whole[: self._first_row])
        return lambda: None


@pytest.mark.parametrize("staging", STAGINGS)
@pytest.mark.parametrize("stored", DTYPES, ids=str)
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_resident_bytes_equal_the_ordinary_load(
    make_bench: Callable[..., Any],
    file_source: Any,
    staging: str,
    stored: torch.dtype,
    compute: str,
) -> None:
    bench = make_bench(stored, tie_word_embeddings=False, attention_bias=True)
    request = bench.request(dtype=compute, **STAGINGS[staging])
    realization, source = Realization(bench, request), file_source(bench.root)
    realization.populate(source)
    assert sorted(source.fetched) == sorted(entry.key for entry in bench.census())
    expected = load_ordinary(bench.root, request)
    actual = realization.tensors("llama-merged")
    assert list(actual) == [
        spec.name for spec in bench.tensors(request, f"llama-merged-{compute}", bench.census())
    ]
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name]), name
    for intent in realization.intents:
        assert not realization.adapter.unpopulated(intent)
        assert realization.realized[intent.id].arena.requested_bytes == intent.expected_bytes


@pytest.mark.parametrize("staging", ["whole", "streaming"])
def test_released_staging_is_unmapped_and_residency_stays(
    make_bench: Callable[..., Any], file_source: Any, staging: str
) -> None:
    bench = make_bench()
    realization = Realization(bench, bench.request(**STAGINGS[staging]))
    realization.populate(file_source(bench.root))
    intent = realization.intent("checkpoint-")
    arena = realization.realized[intent.id].arena
    realization.adapter.release(intent)
    assert arena.release() == 0
    assert all(reference() is None for reference in arena.weak_tensors())
    assert torch.equal(
        realization.tensors("llama-merged")["final_norm"],
        load_ordinary(bench.root, realization.context.request)["final_norm"],
    )


def test_conversion_without_staging_is_counted_and_given_back(
    make_bench: Callable[..., Any], file_source: Any
) -> None:
    bench = make_bench(torch.float32)
    realization = Realization(bench, bench.request(dtype="bfloat16"))
    device = realization.context.memories["device"]
    planned = device.allocated_bytes
    realization.populate(file_source(bench.root))
    assert device.allocated_bytes == planned
    assert device.peak_allocated_bytes >= planned + 53 * 24 * 4
    same = Realization(bench, bench.request(dtype="float32"))
    same.populate(file_source(bench.root))
    device = same.context.memories["device"]
    assert device.peak_allocated_bytes == device.allocated_bytes


@pytest.mark.parametrize("staging", STAGINGS)
@pytest.mark.parametrize("stored", DTYPES, ids=str)
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("first_row", [0, 11])
def test_an_unwritten_slot_is_noticed(
    make_bench: Callable[..., Any],
    file_source: Any,
    staging: str,
    stored: torch.dtype,
    compute: str,
    first_row: int,
) -> None:
    bench = make_bench(stored)
    realization = Realization(bench, bench.request(dtype=compute, **STAGINGS[staging]))
    key = "model.layers.1.self_attn.v_proj.weight"
    with pytest.raises(CheckpointError, match="1 slots hold no data"):
        realization.populate(Faulty(file_source(bench.root), key, first_row))
    intent = realization.intent("llama-merged")
    assert realization.adapter.unpopulated(intent) == (f"layers.1.qkv[36:48] <- {key}",)


def test_nothing_counts_as_populated_before_it_is(
    make_bench: Callable[..., Any], file_source: Any
) -> None:
    bench = make_bench()
    realization = Realization(bench, bench.request())
    merged, rope = realization.intent("llama-merged"), realization.intent("rope")
    assert len(realization.adapter.unpopulated(merged)) == len(bench.census())
    assert realization.adapter.unpopulated(rope) == ("cos", "sin")
    realization.populate(file_source(bench.root))
    realization.tensors("llama-merged")["layers.0.o"][3].view(torch.uint8).fill_(0xFF)
    assert realization.adapter.unpopulated(merged) == (
        "layers.0.o[0:24] <- model.layers.0.self_attn.o_proj.weight",
    )


def test_zero_weights_are_data(make_bench: Callable[..., Any], file_source: Any) -> None:
    bench = make_bench(attention_bias=True)
    tensors = load_file(bench.root / "model.safetensors")
    save_file({key: t * 0 for key, t in tensors.items()}, bench.root / "model.safetensors")
    realization = Realization(bench, bench.request(staging="whole"))
    realization.populate(file_source(bench.root))
    assert not realization.adapter.unpopulated(realization.intent("llama-merged"))


def test_allocation_is_zeroed_and_needs_no_census(make_bench: Callable[..., Any]) -> None:
    bench = make_bench()
    realization = Realization(bench, bench.request())
    for intent in realization.intents:
        for tensor in realization.realized[intent.id].arena.tensors.values():
            assert not tensor.any()


def test_a_small_memory_is_exhausted_before_anything_is_taken(
    make_bench: Callable[..., Any],
) -> None:
    bench = make_bench()
    with pytest.raises(ResourceError, match="device is exhausted"):
        Realization(bench, bench.request(), capacity_bytes=10_000)


def test_lineage_is_minted_by_the_owner_of_the_mutable_state(
    make_bench: Callable[..., Any],
) -> None:
    bench = make_bench()
    realization = Realization(bench, bench.request())
    minted = {
        realized.logical_state_id: realized.lineage
        for realized in realization.realized.values()
        if realized.lineage is not None
    }
    assert minted == {"state.kv": "state.kv@epoch-1"}
    again = realization.adapter.allocate(realization.intent("kv-contiguous"))
    assert again.lineage == "state.kv@epoch-2"


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"kernel_set": "torch-cpu/9"}, "$.determinism.kernel_set"),
        ({"batch_invariant": True}, "$.determinism.batch_invariant"),
    ],
)
def test_what_is_not_built_cannot_be_evaluated(
    make_bench: Callable[..., Any], settings: dict[str, Any], where: str
) -> None:
    bench = make_bench()
    with pytest.raises(NotEvaluableError) as error:
        LlamaAdapter().begin(bench.context(bench.request(**settings)))
    assert error.value.where == where


def execution(strategy_unit: str = "llama.prefill-decode/1") -> Execution:
    return Execution(
        id="exec.model", strategy_unit=strategy_unit, compute_unit_id="unit", required_state=()
    )


def test_activation_needs_known_execution_and_realized_state(
    make_bench: Callable[..., Any],
) -> None:
    bench = make_bench()
    realization = Realization(bench, bench.request())
    realization.adapter.activate(execution())
    with pytest.raises(PlanError, match="unknown execution"):
        realization.adapter.activate(execution("llama.other/1"))
    empty = LlamaAdapter()
    empty.begin(realization.context)
    with pytest.raises(PlanError, match="not realized"):
        empty.activate(execution())


def test_a_form_that_a_state_does_not_have_is_not_allocated(
    make_bench: Callable[..., Any],
) -> None:
    bench = make_bench()
    realization = Realization(bench, bench.request())
    intent = realization.intent("rope-table")
    for changes in ({"logical_state_id": "state.kv"}, {"representation": "other"}):
        with pytest.raises(PlanError, match="unknown representation"):
            realization.adapter.allocate(replace(intent, **changes))


def test_the_layout_names_the_kernel_sets_that_are_built() -> None:
    for name in LlamaLayout.kernel_sets:
        if name == "triton/1" and importlib.util.find_spec("triton") is None:
            with pytest.raises(MissingTritonError):
                select(name)
        else:
            assert callable(select(name))
    with pytest.raises(UnknownKernelSetError):
        select("torch-cpu/99")


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_realized_and_ordinary_run_bitwise_equal(
    make_bench: Callable[..., Any], file_source: Any, compute: str
) -> None:
    bench = make_bench(torch.bfloat16)
    request = bench.request(dtype=compute, staging="whole")
    realization = Realization(bench, request)
    realization.populate(file_source(bench.root))
    reference = LlamaReference().ordinary(bench.root, request)
    ours, theirs = realization.adapter.activate(execution()), reference.executor
    for ids, start in (((1, 2, 3, 4, 5, 6, 7), 0), ((8,), 7), ((9, 10), 8)):
        a = ours.step(ids, start, want_logits=True)
        b = theirs.step(ids, start, want_logits=True)
        assert torch.equal(a.plane, b.plane)
        assert a.logits is not None
        assert b.logits is not None
        assert torch.equal(a.logits, b.logits)
    for name, tensor in reference.residents["rope-table-float32"].items():
        assert torch.equal(tensor, realization.tensors("rope-table")[name])


def test_the_ordinary_load_names_absent_and_repeated_tensors(
    make_bench: Callable[..., Any], tmp_path: Path
) -> None:
    bench = make_bench()
    tensors = load_file(bench.root / "model.safetensors")
    norm = tensors.pop("model.norm.weight")
    save_file(tensors, bench.root / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        load_ordinary(bench.root, bench.request())
    for name in ("one", "two"):
        save_file({"model.norm.weight": norm.clone()}, bench.root / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match="in two files"):
        load_ordinary(bench.root, bench.request())

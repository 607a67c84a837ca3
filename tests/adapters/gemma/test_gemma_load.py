"""Realization of a range's states, against the ordinary load of the same files."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.adapters.gemma.config import read_config
from harness.adapters.gemma.layout import SHARED_TABLE
from harness.adapters.gemma.load import GemmaAdapter
from harness.adapters.gemma.reference import GemmaReference, load_ordinary
from harness.errors import CheckpointError
from harness.plan.records import Execution, Materialization

STAGINGS: dict[str, dict[str, Any]] = {
    "whole": {"staging": "whole"},
    "streaming": {"staging": "streaming", "window_bytes": 53 * 24 * 4},
    "none": {"staging": "none"},
}
PROMPT = tuple((5 * i * i + i + 2) % 53 for i in range(21))


class Realization:
    """All of a request's materializations, allocated and filled."""

    def __init__(self, bench: Any, request: Any, source: Any) -> None:
        context = bench.context(request)
        self.adapter = GemmaAdapter()
        self.adapter.begin(context)
        self.intents: list[Materialization] = bench.intents(context)
        self.realized = {intent.id: self.adapter.allocate(intent) for intent in self.intents}
        for intent in self.intents:
            self.adapter.populate(intent, source)

    def tensors(self, prefix: str) -> Any:
        intent = next(i for i in self.intents if i.representation.startswith(prefix))
        return self.realized[intent.id].arena.tensors

    def activate(self) -> Any:
        return self.adapter.activate(
            Execution(
                id="run",
                strategy_unit="gemma.prefill-decode/1",
                compute_unit_id="cpu",
                required_state=(),
            )
        )


@pytest.mark.parametrize("staging", STAGINGS)
@pytest.mark.parametrize(
    ("stored", "compute"), [(torch.float32, "float32"), (torch.float32, "bfloat16")], ids=str
)
@pytest.mark.parametrize("generation", [3, 4])
def test_resident_bytes_equal_the_ordinary_load(
    make_gemma: Callable[..., Any],
    file_source: Any,
    generation: int,
    staging: str,
    stored: torch.dtype,
    compute: str,
) -> None:
    bench = make_gemma(generation, stored)
    request, source = bench.request(dtype=compute, **STAGINGS[staging]), file_source(bench.root)
    realization = Realization(bench, request, source)
    assert sorted(source.fetched) == sorted(entry.key for entry in bench.census())
    weights, table = load_ordinary(
        bench.root, read_config(bench.config), bench.whole, getattr(torch, compute)
    )
    for prefix, expected in (("gemma-merged", weights), ("gemma-shared-table", table)):
        actual = realization.tensors(prefix)
        assert actual.keys() == expected.keys()
        for name, tensor in actual.items():
            assert tensor.dtype == expected[name].dtype
            assert torch.equal(tensor, expected[name]), name
    if generation == 4:
        qkv = realization.tensors("gemma-merged")["layers.1.qkv"]
        assert torch.equal(qkv[48:60], qkv[60:72])
    for intent in realization.intents:
        assert not realization.adapter.unpopulated(intent)
        assert realization.realized[intent.id].arena.requested_bytes == intent.expected_bytes


@pytest.mark.parametrize("page_size", [None, 4])
def test_the_realized_executor_equals_the_reference(
    make_gemma: Callable[..., Any],
    gemma_request: Callable[..., Any],
    file_source: Any,
    page_size: int | None,
) -> None:
    bench = make_gemma(4)
    request = gemma_request(bench, page_size=page_size, max_positions=24)
    executor = Realization(bench, request, file_source(bench.root)).activate()
    reference = GemmaReference().ordinary(bench.root, request)
    for start, ids in ((0, PROMPT[:13]), (13, PROMPT[13:20]), (20, PROMPT[20:])):
        ours = executor.step(ids, start, want_logits=True)
        theirs = reference.executor.step(ids, start, want_logits=True)
        assert torch.equal(ours.plane, theirs.plane)
        assert torch.equal(ours.logits, theirs.logits)
    theirs_state = reference.executor.declared_state()
    for name, tensor in executor.declared_state().items():
        assert torch.equal(tensor, theirs_state[name]), name
    assert executor.frontier() == len(PROMPT)
    assert executor.observed_authorities() == {"state.kv": "state.kv@epoch-1"}
    assert executor.conditions() == {
        "dtype": "float32",
        "kernel_set": "torch-cpu/1",
        "positions": "24",
    }
    assert {report.pool: report.num_mapped for report in executor.ownership()} == {
        "full": len(PROMPT),
        "swa": len(PROMPT),
    }


def test_reference_forms_are_those_of_the_range(make_gemma: Callable[..., Any]) -> None:
    bench = make_gemma(3)
    middle = replace(
        bench.whole, start_layer=1, end_layer=2, owns_embeddings=False, owns_final_norm_head=False
    )
    for spec, has_table in ((bench.whole, True), (middle, False)):
        request = bench.request(spec=spec, dtype="bfloat16")
        found = GemmaReference().ordinary(bench.root, request).residents
        assert ("gemma-shared-table-bfloat16" in found) == has_table
        designs = {
            design.representation: design.id
            for design in bench.layout.states(request)
            if design.representation in found
        }
        assert found.keys() == designs.keys()
        for form, tensors in found.items():
            specs = bench.layout.tensors(request, designs[form], form, bench.census())
            assert {s.name: s.shape for s in specs} == {
                name: tuple(tensor.shape) for name, tensor in tensors.items()
            }


def test_a_value_projection_where_values_come_from_keys_is_an_error(
    make_gemma: Callable[..., Any],
) -> None:
    bench = make_gemma(4)
    path: Path = bench.root / "model.safetensors"
    tensors = load_file(path)
    key = "model.layers.2.self_attn.v_proj.weight"
    tensors[key] = tensors["model.layers.2.self_attn.k_proj.weight"].clone()
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=key):
        GemmaReference().ordinary(bench.root, bench.request())
    # A range without that layer does not mind.
    first = replace(bench.whole, end_layer=1, owns_final_norm_head=False)
    GemmaReference().ordinary(bench.root, bench.request(spec=first))


def test_a_missing_tensor_is_named(make_gemma: Callable[..., Any]) -> None:
    bench = make_gemma(4)
    path: Path = bench.root / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.layer_scalar"], tensors["model.embed_tokens.weight"]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"embed_tokens"):
        GemmaReference().ordinary(bench.root, bench.request())
    middle = replace(
        bench.whole, start_layer=1, owns_embeddings=False, end_layer=2, owns_final_norm_head=False
    )
    with pytest.raises(CheckpointError, match=r"layers\.1\.layer_scalar"):
        GemmaReference().ordinary(bench.root, bench.request(spec=middle))


def test_an_unfilled_table_is_told(make_gemma: Callable[..., Any], file_source: Any) -> None:
    bench = make_gemma(3)

    class Lazy:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def begin(self, key: str, target: torch.Tensor) -> Callable[[], None]:
            is_embedding = key == "model.embed_tokens.weight"
            return (lambda: None) if is_embedding else self._inner.begin(key, target)

    with pytest.raises(CheckpointError) as caught:
        Realization(bench, bench.request(), Lazy(file_source(bench.root)))
    assert "table[0:53] <- model.embed_tokens.weight" in str(caught.value)
    assert SHARED_TABLE in str(caught.value)

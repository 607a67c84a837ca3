"""Tiny checkpoints of both generations with random weights, and requests over them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from harness.adapters.gemma.layout import GemmaLayout
from harness.adapters.gemma.model import GemmaExecutor
from harness.adapters.gemma.reference import GemmaReference
from harness.plan.layout import LayoutRequest

COMMON: dict[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 53,
    "rms_norm_eps": 1e-6,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "tie_word_embeddings": True,
}
DOCUMENTS: dict[int, dict[str, Any]] = {
    3: COMMON | {"model_type": "gemma3_text", "query_pre_attn_scalar": 12},
    4: COMMON
    | {
        "model_type": "gemma4_text",
        "attention_k_eq_v": True,
        "global_head_dim": 12,
        "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0,
        "final_logit_softcapping": 4.0,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 1e6,
                "partial_rotary_factor": 0.5,
            },
        },
    },
}


def _values(key: str, shape: tuple[int, ...], norms_are_offset: bool) -> torch.Tensor:
    """Random values whose activations neither vanish nor explode over a few layers."""
    values = torch.randn(shape) * 0.3
    if key.endswith("layer_scalar"):
        return values.abs() + 0.5
    return values + 1 if "norm" in key and not norms_are_offset else values


@pytest.fixture
def gemma_document() -> Callable[..., dict[str, Any]]:
    """A supported document of generation 3 or 4, with changes."""
    return lambda generation, **changes: json.loads(json.dumps(DOCUMENTS[generation] | changes))


@pytest.fixture
def open_gemma(bench_of: type[Any]) -> Callable[[Path], Any]:
    """The bench of an existing checkpoint folder."""
    return lambda root: bench_of(
        GemmaLayout(), root, json.loads((root / "config.json").read_text())
    )


@pytest.fixture
def make_gemma(
    tmp_path: Path, gemma_document: Callable[..., dict[str, Any]], open_gemma: Callable[[Path], Any]
) -> Callable[..., Any]:
    """Write a random checkpoint of generation 3 or 4 and return its bench."""

    def make(generation: int, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
        document = gemma_document(generation, **changes)
        torch.manual_seed(11)
        made = GemmaLayout().synthetic_tensors(document)
        tensors = {key: _values(key, t.shape, generation == 3) for key, t in made.items()}
        save_file({k: t.to(dtype) for k, t in tensors.items()}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(document))
        return open_gemma(tmp_path)

    return make


@pytest.fixture
def gemma_request() -> Callable[..., LayoutRequest]:
    """A request over a bench, with the pool's settings besides the bench's own."""

    def make(
        bench: Any,
        *,
        page_size: int | None = None,
        chunk_rows: int = 64,
        eviction_policy: str | None = None,
        **settings: Any,
    ) -> LayoutRequest:
        request = bench.request(**settings)
        workload = replace(request.workload, page_size=page_size, chunk_rows=chunk_rows)
        return replace(request, workload=workload, eviction_policy=eviction_policy)

    return make


@pytest.fixture
def gemma_executor(gemma_request: Callable[..., LayoutRequest]) -> Callable[..., GemmaExecutor]:
    """An executor over the ordinarily loaded checkpoint of a bench."""

    def make(bench: Any, **settings: Any) -> GemmaExecutor:
        executor = GemmaReference().ordinary(bench.root, gemma_request(bench, **settings)).executor
        assert isinstance(executor, GemmaExecutor)
        return executor

    return make

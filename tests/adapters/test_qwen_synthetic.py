"""A made-up checkpoint in modelopt's layout: complete, finite, its activations of order one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import qwen_real
import qwen_small
import torch
from qwen_bench import PUBLISHED, MemorySource, choosing, opened, realized

from harness.adapters.qwen3_5_moe.layout import COMMON, ROUTED, QwenLayout
from harness.checkpoint.census import census
from harness.checkpoint.sources import fetch
from harness.errors import InvalidInputError

DOCUMENT = qwen_small.document(
    hidden_size=128, moe_intermediate_size=64, num_experts=8, quantization_config=qwen_small.MIXTURE
)
SOURCE = {
    "kind": "synthetic",
    "generator": "shake256-quantized/1",
    "seed": 3,
    "family": "qwen3_5_moe",
    "config": DOCUMENT,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def bench(cache: Path, bench_of: Any) -> Any:
    folder = fetch(SOURCE, cache, tensors=QwenLayout().synthetic_tensors)
    return opened(bench_of, folder, DOCUMENT)


def test_it_holds_what_every_form_needs_and_nothing_unknown(bench: Any) -> None:
    layout: QwenLayout = bench.layout
    for forms in ({}, {state: PUBLISHED[state] for state in (COMMON, ROUTED)}):
        (left,) = layout.account(bench.config, bench.whole, bench.census(), forms)
        assert left.rule == "input scales, which no op reads"
        # Of four layers of eight experts; the published form reads those of mixers and shared.
        modules = 4 * 8 * 3 + (0 if forms else 4 * 3 + 3 * 3 + 4)
        assert left.num_tensors == modules


def test_its_numbers_are_finite_and_of_one_size(bench: Any) -> None:
    stored = bench.stored
    assert {t.dtype for t in stored.values()} == {
        torch.uint8,
        torch.float8_e4m3fn,
        torch.float32,
        torch.bfloat16,
    }
    for key, tensor in stored.items():
        assert tensor.float().isfinite().all(), key
        if key.endswith(("_scale", "_scale_2")):
            assert (tensor.float() > 0).all(), key
    for key, weight in qwen_small.dequantized(stored).items():
        if weight.ndim == 2 and not key.endswith("embed_tokens.weight"):
            size = float(weight.square().mean().sqrt()) * weight.shape[1] ** 0.5
            assert 0.5 < size < 2, key
    gate, up = (
        float(stored[f"model.layers.0.mlp.experts.0.{part}_proj.weight_scale_2"])
        for part in ("gate", "up")
    )
    assert gate != up
    for layer in range(3):
        decay = stored[f"model.layers.{layer}.linear_attn.A_log"].float()
        assert ((decay > -3) & (decay < 0)).all()


@pytest.mark.parametrize("form", ["native", "published"])
def test_activations_are_of_order_one_and_tokens_go_to_many_experts(bench: Any, form: str) -> None:
    request = bench.request(dtype="bfloat16", max_positions=64)
    if form == "published":
        request = choosing(request, common=PUBLISHED[COMMON], routed=PUBLISHED[ROUTED])
    executor = realized(bench, MemorySource(bench.stored), request)
    names = bench.layout.boundaries(bench.config, bench.whole)
    seen: dict[str, torch.Tensor] = {}
    executor.reset()
    tokens = [(13 * i * i + 5 * i) % 67 for i in range(48)]
    executor.step(tokens, 0, want_logits=True, tap=lambda i, t: seen.update({names[i]: t.clone()}))
    for name, tensor in seen.items():
        if name.endswith(("residual_2", "mixer_out", "routed_out", "gated_norm", "logits")):
            size = float(tensor.float().square().mean().sqrt())
            assert 0.05 < size < 20, name
        if name.endswith("expert_ids"):
            counts = torch.bincount(tensor.flatten(), minlength=8)
            assert (counts > 0).all(), name
        if name.endswith("expert_weights"):
            assert 0.05 < float(tensor.amin(dim=-1).mean()) < 0.5, name


def test_only_the_wanted_layers_are_made() -> None:
    layout = QwenLayout()

    def layers_of(layers: tuple[int, int] | None) -> set[str]:
        keys = layout.synthetic_tensors(DOCUMENT, layers)
        return {key.split(".")[2] if ".layers." in key else key for key in keys}

    ends = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    assert layers_of(None) == {"0", "1", "2", "3", *ends}
    assert layers_of((0, 2)) == {"0", "1", ends[0]}
    assert layers_of((1, 3)) == {"1", "2"}
    assert layers_of((3, 4)) == {"3", *ends[1:]}
    for layers in ((2, 2), (3, 2), (0, 5)):
        with pytest.raises(InvalidInputError, match="not within the model"):
            layout.synthetic_tensors(DOCUMENT, layers)


def test_the_real_dimensions_are_those_of_the_published_checkpoint() -> None:
    made = QwenLayout().synthetic_tensors(qwen_real.document(), (0, 19))
    names = {"U8": "uint8", "F8_E4M3": "float8_e4m3fn", "BF16": None, "F32": "float32"}

    def rows() -> Iterator[qwen_real.Row]:
        yield next(qwen_real.rows())
        for layer in range(19):
            yield from qwen_real.layer_rows(layer)

    assert {key: (t.dtype, t.shape) for key, t in made.items()} == {
        key: (names[dtype], shape) for key, dtype, shape in rows()
    }


def test_a_plain_model_is_made_of_ordinary_numbers(cache: Path) -> None:
    document = qwen_small.document()
    source = {**SOURCE, "config": document}
    folder = fetch(source, cache, tensors=QwenLayout().synthetic_tensors)
    assert {entry.dtype for entry in census(folder)} == {"bfloat16"}

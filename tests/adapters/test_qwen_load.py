"""Realizing the family's state: every form, every way of staging, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import qwen_bench
import qwen_small
import torch
from qwen_bench import PUBLISHED, MemorySource, Realization
from safetensors.torch import save_file

from harness.adapters.qwen3_5_moe.layout import COMMON, ROUTED
from harness.adapters.qwen3_5_moe.reference import QwenReference, load_ordinary
from harness.errors import CheckpointError
from harness.plan.layout import LayoutRequest

WINDOW = 160 * 32 * 4
EXPERT = "model.layers.1.mlp.experts.2.up_proj"
FORMS: dict[str, tuple[str, dict[str, str]]] = {
    "merged float32": ("float32", {}),
    "merged bfloat16": ("bfloat16", {}),
    "dequantized float32": (
        "float32",
        {COMMON: "common-fp32-dequantized", ROUTED: "fp32-dequantized"},
    ),
    "dequantized bfloat16": (
        "bfloat16",
        {COMMON: "common-bf16-dequantized", ROUTED: "bf16-dequantized"},
    ),
    "published": ("bfloat16", PUBLISHED),
    "published experts": ("bfloat16", {ROUTED: PUBLISHED[ROUTED]}),
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, bench_of: Any) -> Any:
    """The bench of a checkpoint in the published mixture; nobody changes it."""
    folder = tmp_path_factory.mktemp("packed")
    return qwen_bench.opened(bench_of, folder, qwen_bench.write(folder))


def asked(bench: Any, form: str, staging: str, **changes: Any) -> LayoutRequest:
    dtype, representations = FORMS[form]
    request = bench.request(
        dtype=dtype,
        staging=staging,
        window_bytes=WINDOW if staging == "streaming" else None,
        **changes,
    )
    return replace(request, representations=representations)


@pytest.mark.parametrize("staging", ["whole", "streaming", "none"])
@pytest.mark.parametrize("form", FORMS)
def test_resident_bytes_equal_the_ordinary_load(bench: Any, form: str, staging: str) -> None:
    request = asked(bench, form, staging)
    realization, source = Realization(bench, request), MemorySource(bench.stored)
    realization.populate(source)
    keys = bench.layout.tensor_keys(bench.config, bench.whole, request.representations)
    assert sorted(source.fetched) == list(keys)
    ordinary = load_ordinary(bench.root, request)
    for state in (COMMON, ROUTED):
        expected = ordinary[realization.intent(state).representation]
        actual = realization.arena(state).tensors
        assert actual.keys() == expected.keys()
        for name, tensor in actual.items():
            assert tensor.dtype == expected[name].dtype
            assert tensor.view(torch.uint8).equal(expected[name].view(torch.uint8)), name
    for intent in realization.intents:
        assert not realization.adapter.unpopulated(intent)
        assert realization.realized[intent.id].arena.requested_bytes == intent.expected_bytes


def test_a_plain_checkpoint_is_realized_too(tmp_path: Path, bench_of: Any) -> None:
    document = qwen_bench.write(tmp_path, packed=False, tie_word_embeddings=True)
    bench = qwen_bench.opened(bench_of, tmp_path, document)
    request = asked(bench, "merged bfloat16", "streaming")
    realization = Realization(bench, request)
    realization.populate(MemorySource(bench.stored))
    ordinary = load_ordinary(bench.root, request)
    for state in (COMMON, ROUTED):
        for name, tensor in ordinary[realization.intent(state).representation].items():
            assert torch.equal(realization.arena(state).tensors[name], tensor)


@pytest.mark.parametrize(
    ("form", "num_staged"), [("published", 4 * 6), ("merged bfloat16", 4 * 4 * 9)]
)
def test_staging_is_whole_and_gone_after_its_release(
    bench: Any, form: str, num_staged: int
) -> None:
    realization = Realization(bench, asked(bench, form, "whole"))
    realization.populate(MemorySource(bench.stored))
    host, device = (realization.context.memories[name] for name in ("host", "device"))
    staged = realization.arena(ROUTED, staging=True)
    assert len(staged.tensors) == num_staged
    before = {name: tensor.clone() for name, tensor in realization.arena(ROUTED).tensors.items()}
    if form == "published":
        assert staged.requested_bytes == realization.arena(ROUTED).requested_bytes
        assert staged.tensors.keys() == before.keys()
    held = host.allocated_bytes
    realization.adapter.release(realization.intent(ROUTED, staging=True))
    assert staged.release() == 0
    assert all(reference() is None for reference in staged.weak_tensors())
    assert host.allocated_bytes == held - staged.allocated_bytes
    for name, tensor in realization.arena(ROUTED).tensors.items():
        assert tensor.view(torch.uint8).equal(before[name].view(torch.uint8))
    assert not realization.adapter.unpopulated(realization.intent(ROUTED))
    # Conversion of a few scalars apart, nothing beyond the plan was ever taken.
    planned = sum(realization.realized[i.id].arena.allocated_bytes
                  for i in realization.intents if i.memory_resource_id == "device")  # fmt: skip
    assert device.peak_allocated_bytes <= planned + 4096


def test_a_bank_is_streamed_through_its_window_alone(tmp_path: Path, bench_of: Any) -> None:
    document = qwen_bench.write(tmp_path, num_experts=32)
    bench = qwen_bench.opened(bench_of, tmp_path, document)
    realization = Realization(bench, asked(bench, "dequantized bfloat16", "streaming"))
    host, device = (realization.context.memories[name] for name in ("host", "device"))
    host_before, device_before = host.allocated_bytes, device.allocated_bytes
    bank = realization.arena(ROUTED).requested_bytes
    assert bank > 3 * WINDOW
    realization.populate(MemorySource(bench.stored))
    assert host.peak_allocated_bytes == host_before
    assert device.peak_allocated_bytes == device_before


def damaged(bench: Any, key: str, change: Callable[[torch.Tensor], object]) -> MemorySource:
    """A source whose one tensor was changed in place."""
    tensor = bench.stored[key].clone()
    change(tensor)
    return MemorySource({**bench.stored, key: tensor})


def bits(index: int, value: int) -> Callable[[torch.Tensor], object]:
    return lambda tensor: tensor.view(torch.uint8).view(-1).__setitem__(index, value)


SCALES: dict[str, tuple[str, Callable[[torch.Tensor], object], str]] = {
    "NaN block scale": ("weight_scale", bits(3, 0x7F), "not finite, or negative"),
    "negative block scale": ("weight_scale", bits(3, 0x88), "not finite, or negative"),
    "NaN factor": ("weight_scale_2", lambda t: t.fill_(float("nan")), "got: nan"),
    "infinite factor": ("weight_scale_2", lambda t: t.fill_(float("inf")), "got: inf"),
    "negative factor": ("weight_scale_2", lambda t: t.fill_(-1e-3), "got: -0.001"),
    "divisor": ("weight_scale_2", lambda t: t.reciprocal_(), "may be a divisor"),
}


WAYS = [("published", "whole"), ("merged float32", "none"), ("dequantized bfloat16", "streaming")]


@pytest.mark.parametrize(("form", "staging"), WAYS)
@pytest.mark.parametrize("scale", SCALES)
def test_scales_that_are_none_are_refused_by_name(
    bench: Any, scale: str, form: str, staging: str
) -> None:
    suffix, change, text = SCALES[scale]
    realization = Realization(bench, asked(bench, form, staging))
    with pytest.raises(CheckpointError) as error:
        realization.populate(damaged(bench, f"{EXPERT}.{suffix}", change))
    assert error.value.where == f"{EXPERT}.{suffix}"
    assert text in str(error.value)


OTHERS: dict[str, tuple[str, str, Callable[[torch.Tensor], object], str]] = {
    "NaN fp8 weight": (
        "merged bfloat16",
        "model.layers.0.linear_attn.out_proj.weight",
        bits(7, 0xFF),
        "NaN at 7",
    ),
    "infinite fp8 factor": (
        "dequantized float32",
        "model.layers.3.self_attn.q_proj.weight_scale",
        lambda t: t.fill_(float("inf")),
        "got: inf",
    ),
    "infinite input scale, kept nowhere": (
        "published",
        "model.layers.3.self_attn.q_proj.input_scale",
        lambda t: t.fill_(float("inf")),
        "got: inf",
    ),
    "NaN input scale, kept": (
        "published",
        "model.layers.2.mlp.shared_expert.down_proj.input_scale",
        lambda t: t.fill_(float("nan")),
        "got: nan",
    ),
    "too small for float16": (
        "published",
        f"{EXPERT}.weight_scale_2",
        lambda t: t.fill_(1e-9),
        "lost by rounding",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_values_that_are_refused_by_name(bench: Any, name: str) -> None:
    form, key, change, text = OTHERS[name]
    realization = Realization(bench, asked(bench, form, "none"))
    with pytest.raises(CheckpointError) as error:
        realization.populate(damaged(bench, key, change))
    assert error.value.where == key
    assert text in str(error.value)


def test_gate_and_up_keep_their_own_factors(bench: Any) -> None:
    gate, up = (
        f"model.layers.1.mlp.experts.2.{part}_proj.weight_scale_2" for part in ("gate", "up")
    )
    stored = bench.stored
    assert stored[gate] != stored[up]
    realization = Realization(bench, asked(bench, "merged float32", "none"))
    realization.populate(MemorySource(bench.stored))
    rows = realization.arena(ROUTED).tensors["layers.1.experts.gate_up_row_scales"].view(4, 2, 16)
    assert torch.equal(rows[2, 0], stored[gate].expand(16))
    assert torch.equal(rows[2, 1], stored[up].expand(16))


class Withholding:
    """A source that leaves one key's rows unwritten."""

    def __init__(self, inner: Any, key: str) -> None:
        self._inner, self._key = inner, key

    def begin(self, key: str, target: torch.Tensor) -> Callable[[], None]:
        return (lambda: None) if key == self._key else self._inner.begin(key, target)


@pytest.mark.parametrize(("form", "staging"), [*WAYS, ("merged bfloat16", "whole")])
@pytest.mark.parametrize(
    "key", [f"{EXPERT}.weight", f"{EXPERT}.weight_scale", "model.layers.1.mlp.gate.weight"]
)
def test_an_unwritten_slot_is_noticed(bench: Any, form: str, staging: str, key: str) -> None:
    realization = Realization(bench, asked(bench, form, staging))
    with pytest.raises(CheckpointError) as error:
        realization.populate(Withholding(MemorySource(bench.stored), key))
    assert key in str(error.value)


def test_a_bank_from_a_staging_that_broke_off_is_not_complete(bench: Any) -> None:
    realization = Realization(bench, asked(bench, "published", "whole"))
    source = damaged(bench, f"{EXPERT}.weight_scale_2", lambda t: t.fill_(float("nan")))
    with pytest.raises(CheckpointError, match="is not one"):
        realization.adapter.populate(realization.intent(ROUTED, staging=True), source)
    resident = realization.intent(ROUTED)
    with pytest.raises(CheckpointError, match="hold no data"):
        realization.adapter.populate(resident, source)
    missing = realization.adapter.unpopulated(resident)
    assert any(slot.endswith(f"{EXPERT}.weight_scale_2") for slot in missing)
    # Never read, so never marked: known from the record of what was filled alone.
    assert any("layers.3.experts" in slot for slot in missing)


def test_every_missing_tensor_of_an_ordinary_load_is_named(bench: Any, tmp_path: Path) -> None:
    gone = [f"{EXPERT}.weight_scale", "model.layers.0.mlp.shared_expert.up_proj.weight_scale_2"]
    kept = {key: tensor for key, tensor in bench.stored.items() if key not in gone}
    save_file(kept, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="absent") as absent:
        QwenReference().ordinary(tmp_path, asked(bench, "merged float32", "none"))
    assert all(key in str(absent.value) for key in gone)


def structured(folder: Path, *, swapped: bool) -> dict[str, Any]:
    """A checkpoint whose columns are large and small together, as in a trained model."""
    document = qwen_small.document(hidden_size=512)
    tensors = qwen_bench.random_tensors(document)
    sizes = torch.exp(0.5 * torch.randn(512))
    for key in tensors:
        if key.endswith(("gate_proj.weight", "up_proj.weight", "mlp.gate.weight")):
            tensors[key] = tensors[key] * sizes
    packed = qwen_small.quantized(tensors)
    if swapped:
        for key in packed:
            if ".experts." in key and key.endswith("_proj.weight"):
                packed[key] = packed[key] << 4 | packed[key] >> 4
    document["quantization_config"] = qwen_small.MIXTURE
    qwen_small.write(folder, packed, document)
    return document


@pytest.mark.parametrize("swapped", [False, True])
def test_swapped_elements_show_where_columns_share_their_size(
    tmp_path: Path, bench_of: Any, swapped: bool
) -> None:
    bench = qwen_bench.opened(bench_of, tmp_path, structured(tmp_path, swapped=swapped))
    realization = Realization(bench, asked(bench, "merged float32", "none"))
    realization.populate(MemorySource(bench.stored))
    if swapped:
        with pytest.raises(CheckpointError, match="elements swapped"):
            realization.executor()
    else:
        realization.executor()

"""The family's layout: keys, representations and bytes, as plans and loaders need them.

Pure arithmetic over the normalized configuration; imports no torch.

Shape legend: P positions, L layers of a kind in the range, K KV heads, D head size, C channels and
W taps of the convolution, V value heads, Dk and Dv sizes of a key and a value head.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from harness.adapters.common.layout import COMPUTE_DTYPES, FamilyLayout
from harness.adapters.common.rows import ResidentTensor
from harness.adapters.qwen3_5_moe import published_forms as published
from harness.adapters.qwen3_5_moe.boundaries import step_boundaries
from harness.adapters.qwen3_5_moe.census import left_out_by
from harness.adapters.qwen3_5_moe.config import FULL, LINEAR, QwenConfig, read_config
from harness.adapters.qwen3_5_moe.keys import common_tensors, routed_tensors
from harness.adapters.qwen3_5_moe.projections import Variant
from harness.adapters.qwen3_5_moe.published_config import parse_document
from harness.adapters.qwen3_5_moe.quantization import FP8, NVFP4
from harness.adapters.qwen3_5_moe.synthetic import described
from harness.plan.layout import (
    CHECKPOINT_NATIVE,
    CensusEntry,
    LayoutRequest,
    SyntheticTensor,
    TensorSpec,
)
from harness.plan.records import RECORDED, ModelRange

ROUTED = "state.routed-experts"
COMMON = "state.common"
ROPE = "state.rope"
RUNTIME = "state.runtime"
ROPE_TABLE = "rope-table-float32"
STRATEGY_UNIT = "qwen3_5_moe.prefill-decode/1"

_BANKS = "expert-banks-"
_MERGED = "common-merged-"
_SHORT = {"bfloat16": "bf16", "float32": "fp32"}


class QwenLayout(FamilyLayout):
    """The family's :class:`harness.plan.layout.AdapterLayout`."""

    family = "qwen3_5_moe"
    strategy_units = frozenset({STRATEGY_UNIT})
    boundaries_version = "qwen3_5_moe.boundaries/2"
    kernel_sets: ClassVar[Mapping[str, bool]] = {
        "torch-cpu/1": False,
        "torch-cpu-invariant/1": True,
        "native-cpu/1": True,
        "torch-reference/1": False,
        "triton/1": True,
    }
    resident_forms: ClassVar[Mapping[str, str]] = {COMMON: _MERGED, ROUTED: _BANKS}
    bank_staging = frozenset({published.ROUTED_STAGING})
    derived_forms: ClassVar[Mapping[str, str]] = {ROPE: ROPE_TABLE}
    mutable_state = RUNTIME
    mutable_form = "hybrid-runtime-"

    def parse_config(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Normalize a ``config.json``; every unsupported field is refused by name."""
        return parse_document(document).document()

    def synthetic_tensors(
        self, document: Mapping[str, Any], layers: tuple[int, int] | None = None
    ) -> Mapping[str, SyntheticTensor]:
        """What a made-up checkpoint holds, with bounds, and input scales as published ones have."""
        return described(super().synthetic_tensors(document, layers))

    def forms(self, state_id: str, dtype: str) -> tuple[str, ...]:
        """As merged from the checkpoint, dequantized, and (in bfloat16) as published."""
        own, dequantized = self.resident_forms[state_id] + dtype, f"{_SHORT[dtype]}-dequantized"
        if state_id == COMMON:
            dequantized = f"common-{dequantized}"
        known = {COMMON: published.COMMON, ROUTED: published.ROUTED}
        return (own, dequantized, *([known[state_id]] if dtype == "bfloat16" else []))

    def mutable_forms(self, dtype: str) -> tuple[str, ...]:
        """The own form, and (in bfloat16) the published one, of the same tensors."""
        own = super().mutable_forms(dtype)
        return (*own, published.RUNTIME) if dtype == "bfloat16" else own

    def residents(
        self, config: Mapping[str, Any], spec: ModelRange
    ) -> Mapping[str, tuple[ResidentTensor, ...]]:
        """The tensors of the range, as merged from the checkpoint."""
        dtype = COMPUTE_DTYPES[0]
        return {
            state_id: self.form_tensors(config, spec, state_id, self.forms(state_id, dtype)[0])
            for state_id in self.resident_forms
        }

    def form_tensors(
        self, config: Mapping[str, Any], spec: ModelRange, state_id: str, form: str
    ) -> tuple[ResidentTensor, ...]:
        """Resident tensors of one immutable state in one of its forms, in arena order."""
        make = {COMMON: common_tensors, ROUTED: routed_tensors}.get(state_id)
        return () if make is None else make(read_config(config), spec, _variant(form))

    def staging_form(self, request: LayoutRequest, state_id: str) -> str | None:
        """Published banks are staged as banks; published common state is read directly."""
        staged = super().staging_form(request, state_id)
        if staged == CHECKPOINT_NATIVE:
            form = self.chosen_form(request, state_id)
            return {published.ROUTED: published.ROUTED_STAGING, published.COMMON: None}.get(
                form, staged
            )
        return staged

    def derived_in(self, request: LayoutRequest) -> Mapping[str, str]:
        """The rotary tables, but not beside the published runtime, which counts none."""
        if request.representations.get(RUNTIME) == published.RUNTIME:
            return {}
        return self.derived_forms

    def derived_tensors(self, request: LayoutRequest, state_id: str) -> tuple[TensorSpec, ...]:
        """``cos`` and ``sin`` [P, rotary / 2]."""
        shape = (request.workload.max_positions, read_config(request.config).rotary_dim // 2)
        return tuple(TensorSpec(name=name, dtype="float32", shape=shape) for name in ("cos", "sin"))

    def mutable_tensors(self, request: LayoutRequest, dtype: str) -> tuple[TensorSpec, ...]:
        """``k``, ``v`` [L, P, K, D]; ``conv`` [L, C, W - 1]; ``recurrent`` [L, V, Dk, Dv] float32.

        A range without layers of a kind has no tensors of that kind.
        """
        config = read_config(request.config)
        kinds = [layer.kind for layer in config.layers]
        kinds = kinds[request.spec.start_layer : request.spec.end_layer]
        positions = request.workload.max_positions
        shapes = runtime_shapes(config, kinds, positions)
        return tuple(
            TensorSpec(name=name, dtype="float32" if name == "recurrent" else dtype, shape=shape)
            for name, shape in shapes.items()
        )

    def sizes(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Hidden size and vocabulary size."""
        model = read_config(config)
        return model.hidden_size, model.vocab_size

    def faults(self, request: LayoutRequest) -> list[tuple[str, str]]:
        """The published forms are those of the published mixture, and steps beside the published
        runtime, which make their tables anew, cannot be recorded."""
        config, spec = read_config(request.config), request.spec
        wanted = {
            published.COMMON: {"mixer": FP8, "shared": NVFP4},
            published.ROUTED: {"experts": NVFP4},
        }
        faults = []
        if request.workload.decode_mode == RECORDED and not self.derived_in(request):
            message = f"steps beside {published.RUNTIME!r} make their tables anew: not recorded"
            faults.append(("$.workload.decode_mode", message))
        for form in sorted(set(request.representations.values()) & wanted.keys()):
            for index in range(spec.start_layer, min(spec.end_layer, config.num_layers)):
                for part, needed in wanted[form].items():
                    got = getattr(config.layers[index], part)
                    if got != needed:
                        message = f"{form!r} needs {needed}, {part} of layer {index} is {got}"
                        faults.append(("$.materializations", message))
        return faults

    def left_out_by(
        self, config: Mapping[str, Any], spec: ModelRange, census: Sequence[CensusEntry]
    ) -> Mapping[str, str]:
        """Key -> rule: vision, further tokens, input scales, other layers and ends."""
        model = read_config(config)
        whole = replace(
            spec,
            start_layer=0,
            end_layer=model.num_layers,
            owns_embeddings=True,
            owns_final_norm_head=True,
        )
        return left_out_by(model, spec, census, self.tensor_keys(config, whole))

    def boundaries(self, config: Mapping[str, Any], spec: ModelRange) -> tuple[str, ...]:
        """Boundaries of one step with logits, in execution order."""
        return step_boundaries(read_config(config), spec)


def runtime_shapes(
    config: QwenConfig, kinds: list[str], positions: int
) -> dict[str, tuple[int, ...]]:
    """Shapes of the mutable tensors of layers of these kinds, by name."""
    return dict(_runtime_shapes(config, kinds, positions))


def _runtime_shapes(
    config: QwenConfig, kinds: list[str], positions: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    if num_full := kinds.count(FULL):
        for name in ("k", "v"):
            yield name, (num_full, positions, config.num_kv_heads, config.head_dim)
    if num_linear := kinds.count(LINEAR):
        yield "conv", (num_linear, config.conv_rows, config.conv_width - 1)
        state = (config.num_value_heads, config.key_head_dim, config.value_head_dim)
        yield "recurrent", (num_linear, *state)


def _variant(form: str) -> Variant:
    if form in (published.COMMON, published.ROUTED, published.ROUTED_STAGING):
        return Variant.PUBLISHED
    return Variant.DEQUANTIZED if form.endswith("-dequantized") else Variant.NATIVE

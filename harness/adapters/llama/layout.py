"""The Llama family's layout: keys, representations and bytes, as plans and loaders need them.

Pure arithmetic over the normalized configuration; imports no torch.

Shape legend: P positions, L layers of the range, K KV heads, D head size.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from harness.adapters.common.census import left_out
from harness.adapters.common.layout import WEIGHTS, FamilyLayout
from harness.adapters.common.rows import ResidentTensor, RowSource
from harness.adapters.llama.config import parse_document, read_config
from harness.adapters.llama.keys import resident_tensors
from harness.plan.layout import (
    HEAD_BOUNDARIES,
    CensusEntry,
    LayoutRequest,
    TensorSpec,
    input_boundaries,
)
from harness.plan.records import ModelRange

ROPE = "state.rope"
KV = "state.kv"
MERGED = "llama-merged-"
ROPE_TABLE = "rope-table-float32"
STRATEGY_UNIT = "llama.prefill-decode/1"
ATTENTION_BOUNDARIES = (
    "input_norm",
    "q",
    "k",
    "v",
    "kv_before",
    "kv_written",
    "attention_out",
    "o_proj",
    "residual_1",
)
"""Of one layer's attention block, in execution order.

q and k are rotated; ``kv_before`` and ``kv_written`` [2, R, K, D] are the cache at the rows.
"""
MLP_BOUNDARIES = ("post_norm", "gate_up", "mlp_out", "residual_2")


class LlamaLayout(FamilyLayout):
    """The family's :class:`harness.plan.layout.AdapterLayout`."""

    family = "llama"
    strategy_units = frozenset({STRATEGY_UNIT})
    boundaries_version = "llama.boundaries/2"
    kernel_sets: ClassVar[Mapping[str, bool]] = {
        "torch-cpu/1": False,
        "torch-cpu-invariant/1": True,
        "native-cpu/1": True,
        "torch-reference/1": False,
        "triton/1": True,
    }
    resident_forms: ClassVar[Mapping[str, str]] = {WEIGHTS: MERGED}
    derived_forms: ClassVar[Mapping[str, str]] = {ROPE: ROPE_TABLE}
    mutable_state = KV
    mutable_form = "kv-contiguous-"

    def parse_config(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Normalize a ``config.json``; every unsupported field is refused by name."""
        return parse_document(document).document()

    def residents(
        self, config: Mapping[str, Any], spec: ModelRange
    ) -> Mapping[str, tuple[ResidentTensor, ...]]:
        """The merged tensors of the range."""
        return {WEIGHTS: resident_tensors(read_config(config), spec)}

    def left_out_by(
        self, config: Mapping[str, Any], spec: ModelRange, census: Sequence[CensusEntry]
    ) -> Mapping[str, str]:
        """Key -> rule: what is neither of the range nor against the model.

        Raises:
            PlanError: Naming what the range would have to read if it were of this model.
        """
        return left_out(
            census,
            prefix="model.",
            known=self.known_keys(config, spec),
            spec=spec,
            num_layers=read_config(config).num_layers,
            forbidden={},
        )

    def resident_sources(
        self, config: Mapping[str, Any], spec: ModelRange
    ) -> Mapping[str, tuple[RowSource, ...]]:
        """Resident tensor -> the checkpoint tensors whose rows it is made of, in order."""
        return {t.name: t.sources for t in resident_tensors(read_config(config), spec)}

    def derived_tensors(self, request: LayoutRequest, state_id: str) -> tuple[TensorSpec, ...]:
        """``cos`` and ``sin`` [P, D/2]."""
        shape = (request.workload.max_positions, read_config(request.config).head_dim // 2)
        return tuple(TensorSpec(name=name, dtype="float32", shape=shape) for name in ("cos", "sin"))

    def mutable_tensors(self, request: LayoutRequest, dtype: str) -> tuple[TensorSpec, ...]:
        """The cache: ``k`` and ``v`` [L, P, K, D]."""
        config = read_config(request.config)
        shape = (
            request.spec.end_layer - request.spec.start_layer,
            request.workload.max_positions,
            config.num_kv_heads,
            config.head_dim,
        )
        return tuple(TensorSpec(name=name, dtype=dtype, shape=shape) for name in ("k", "v"))

    def sizes(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Hidden size and vocabulary size."""
        model = read_config(config)
        return model.hidden_size, model.vocab_size

    def faults(self, request: LayoutRequest) -> list[tuple[str, str]]:
        """Dynamic frequencies depend on the length seen so far.

        A long prompt would mean something else for every way of cutting it into chunks.
        """
        config = read_config(request.config)
        is_long = len(request.workload.prompt_token_ids) > config.max_position_embeddings
        if config.rope_scaling.kind == "dynamic" and is_long:
            most = config.max_position_embeddings
            message = f"dynamic rotary scaling supports prompts up to {most}"
            return [("$.workload.prompt_token_ids", message)]
        return []

    def boundaries(self, config: Mapping[str, Any], spec: ModelRange) -> tuple[str, ...]:
        """Boundaries of one step with logits, in execution order."""
        read_config(config)
        names = list(input_boundaries(spec))
        for layer in range(spec.start_layer, spec.end_layer):
            names += [f"layers.{layer}.{name}" for name in ATTENTION_BOUNDARIES + MLP_BOUNDARIES]
        return (*names, *(HEAD_BOUNDARIES if spec.owns_final_norm_head else ()))

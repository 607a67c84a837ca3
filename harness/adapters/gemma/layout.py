"""The Gemma family's layout: keys, representations and bytes, as plans and loaders need them.

Pure arithmetic over the normalized configuration; imports no torch.

Shape legend: P positions, D head size.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from harness.adapters.common.census import left_out
from harness.adapters.common.layout import WEIGHTS, FamilyLayout
from harness.adapters.common.rows import ResidentTensor
from harness.adapters.gemma.config import GemmaConfig, read_config
from harness.adapters.gemma.keys import (
    forbidden_keys,
    resident_tensors,
    shared_tensors,
)
from harness.adapters.gemma.published import parse_document
from harness.plan.layout import (
    HEAD_BOUNDARIES,
    CensusEntry,
    LayoutRequest,
    TensorSpec,
    input_boundaries,
)
from harness.plan.records import ModelRange
from harness.state.geometry import EVICTION_POLICIES, FULL, SWA, HybridGeometry, Kind, KvGroup

SHARED_TABLE = "state.shared-table"
ROPE = "state.rope"
KV = "state.kv"
MERGED = "gemma-merged-"
SHARED = "gemma-shared-table-"
ROPE_TABLE = "rope-table-by-kind-float32"
STRATEGY_UNIT = "gemma.prefill-decode/1"

ATTENTION_BOUNDARIES = (
    "input_norm",
    "slots",
    "qkv",
    "q",
    "k",
    "v",
    "kv_before",
    "kv_written",
    "attention_out",
    "o_proj",
    "post_attention_norm",
    "residual_1",
)
"""Of one layer's attention block, in execution order.

``slots`` are those that the layer reads, its own rows' last; q and k are normed and rotated, v is
as it is stored; ``kv_before`` and ``kv_written`` [2, R, K, D] are the cache at the rows' slots.
"""
MLP_BOUNDARIES = ("pre_mlp_norm", "gate_up", "mlp_out", "post_mlp_norm", "residual_2")
LAYER_SCALAR_BOUNDARY = "layer_scalar"


class GemmaLayout(FamilyLayout):
    """The family's :class:`harness.plan.layout.AdapterLayout`."""

    family = "gemma"
    strategy_units = frozenset({STRATEGY_UNIT})
    boundaries_version = "gemma.boundaries/2"
    kernel_sets: ClassVar[Mapping[str, bool]] = {
        "torch-cpu/1": False,
        "torch-cpu-invariant/1": True,
        "native-cpu/1": True,
        "torch-reference/1": False,
        "triton/1": True,
    }
    acceptance_checks = ("state.ownership",)
    eviction_policies = EVICTION_POLICIES
    is_paged = True
    resident_forms: ClassVar[Mapping[str, str]] = {SHARED_TABLE: SHARED, WEIGHTS: MERGED}
    derived_forms: ClassVar[Mapping[str, str]] = {ROPE: ROPE_TABLE}
    mutable_state = KV
    mutable_form = "kv-hybrid-paged-"

    def parse_config(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Normalize a ``config.json``; every unsupported field is refused by name."""
        return parse_document(document).document()

    def residents(
        self, config: Mapping[str, Any], spec: ModelRange
    ) -> Mapping[str, tuple[ResidentTensor, ...]]:
        """The shared table, and the merged tensors of the range."""
        model = read_config(config)
        return {
            SHARED_TABLE: shared_tensors(model, spec),
            WEIGHTS: resident_tensors(model, spec),
        }

    def left_out_by(
        self, config: Mapping[str, Any], spec: ModelRange, census: Sequence[CensusEntry]
    ) -> Mapping[str, str]:
        """Key -> rule: what is neither of the range nor against the model.

        Raises:
            PlanError: Naming value projections of layers that take their values from the keys, and
                what else the range would have to read if it were of this model.
        """
        model = read_config(config)
        reason = "the layer takes its values from the keys, and has a projection of its own"
        forbidden = {entry.key for entry in census} & set(forbidden_keys(model, spec))
        return left_out(
            census,
            prefix=model.key_prefix,
            known=self.known_keys(config, spec),
            spec=spec,
            num_layers=model.num_layers,
            forbidden=dict.fromkeys(forbidden, reason),
        )

    def derived_tensors(self, request: LayoutRequest, state_id: str) -> tuple[TensorSpec, ...]:
        """``KIND.cos`` and ``KIND.sin`` [P, D/2] of each kind of layer in the range."""
        config, spec = read_config(request.config), request.spec
        positions = request.workload.max_positions
        return tuple(
            TensorSpec(
                name=f"{kind}.{name}",
                dtype="float32",
                shape=(positions, config.kind(kind).head_dim // 2),
            )
            for kind in config.kinds_in(spec.start_layer, spec.end_layer)
            for name in ("cos", "sin")
        )

    def mutable_tensors(self, request: LayoutRequest, dtype: str) -> tuple[TensorSpec, ...]:
        """The declared tensors of the hybrid pool."""
        return kv_geometry(request, dtype).tensors()

    def sizes(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Hidden size and vocabulary size."""
        model = read_config(config)
        return model.hidden_size, model.vocab_size

    def boundaries(self, config: Mapping[str, Any], spec: ModelRange) -> tuple[str, ...]:
        """Boundaries of one step with logits, in execution order.

        ``page_table`` are the full slots of all positions.
        """
        layer_names = [*ATTENTION_BOUNDARIES, *MLP_BOUNDARIES]
        if read_config(config).layer_scalar:
            layer_names.append(LAYER_SCALAR_BOUNDARY)
        names = [*input_boundaries(spec), "page_table"]
        for layer in range(spec.start_layer, spec.end_layer):
            names += [f"layers.{layer}.{name}" for name in layer_names]
        return (*names, *(HEAD_BOUNDARIES if spec.owns_final_norm_head else ()))


def kv_geometry(request: LayoutRequest, dtype: str) -> HybridGeometry:
    """The geometry of the range's hybrid pool, with keys and values in ``dtype``."""
    config, spec, workload = read_config(request.config), request.spec, request.workload
    full, swa = kv_groups(config, spec)
    return HybridGeometry(
        max_positions=workload.max_positions,
        dtype=dtype,
        full=full,
        swa=swa,
        window=config.window if swa is not None else None,
        page_size=workload.page_size or 1,
        eviction_policy=request.eviction_policy,
        chunk_rows=workload.chunk_rows,
    )


def kv_groups(config: GemmaConfig, spec: ModelRange) -> tuple[KvGroup | None, KvGroup | None]:
    """The range's full and sliding-window layers, as a pool groups them."""
    return _group(config, spec, FULL), _group(config, spec, SWA)


def _group(config: GemmaConfig, spec: ModelRange, kind: Kind) -> KvGroup | None:
    num_layers = config.layer_kinds[spec.start_layer : spec.end_layer].count(kind)
    if not num_layers:
        return None
    attention = config.kind(kind)
    return KvGroup(
        num_layers=num_layers,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
    )

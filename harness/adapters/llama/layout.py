"""The Llama family's layout: keys, representations and bytes, as plans and loaders need them.

Pure arithmetic over the normalized configuration; imports no torch.

Shape legend: H hidden size, I intermediate size, V vocabulary size, P positions, L layers of the
range, K KV heads, D head size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.adapters.llama.config import LlamaConfig, parse_document, read_config
from harness.adapters.llama.keys import (
    RowSource,
    needed_entries,
    resident_tensors,
    source_shapes,
)
from harness.errors import PlanError
from harness.plan.layout import (
    CHECKPOINT_NATIVE,
    CHECKPOINT_WINDOW,
    DTYPE_BYTES,
    REFERENCE_OUTPUTS,
    STATE_SNAPSHOT,
    CensusEntry,
    LayoutRequest,
    StateDesign,
    TensorSpec,
)
from harness.plan.records import Finding, ModelRange

COMPUTE_DTYPES = ("bfloat16", "float32")
BACKING_SOURCE = "checkpoint"

WEIGHTS = "state.weights"
ROPE = "state.rope"
KV = "state.kv"
REPLAY = "state.replay-baseline"
FIXTURE = "state.reference-fixture"

MERGED = "llama-merged-"
ROPE_TABLE = "rope-table-float32"
CONTIGUOUS_KV = "kv-contiguous-"

STRATEGY_UNIT = "llama.prefill-decode/1"
_LAYER_BOUNDARIES = (
    "input_norm",
    "q",
    "k",
    "v",
    "kv_written",
    "attention_out",
    "o_proj",
    "residual_1",
    "post_norm",
    "gate_up",
    "mlp_out",
    "residual_2",
)


_FORMS: Mapping[str, frozenset[str]] = {
    WEIGHTS: frozenset(
        {CHECKPOINT_NATIVE, CHECKPOINT_WINDOW, *(MERGED + dtype for dtype in COMPUTE_DTYPES)}
    ),
    ROPE: frozenset({ROPE_TABLE}),
    KV: frozenset(CONTIGUOUS_KV + dtype for dtype in COMPUTE_DTYPES),
    REPLAY: frozenset({STATE_SNAPSHOT}),
    FIXTURE: frozenset({REFERENCE_OUTPUTS}),
}
"""Representations of each logical state."""


class LlamaLayout:
    """The family's :class:`harness.plan.layout.AdapterLayout`."""

    family = "llama"
    strategy_units = frozenset({STRATEGY_UNIT})
    boundaries_version = "llama.boundaries/1"
    kernel_sets: Mapping[str, bool] = {"torch-cpu/1": False, "torch-reference/1": False}

    def parse_config(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Normalize a ``config.json``; every unsupported field is refused by name."""
        return parse_document(document).document()

    def tensor_keys(self, config: Mapping[str, Any], spec: ModelRange) -> tuple[str, ...]:
        """Checkpoint keys that the range needs, sorted."""
        return tuple(source_shapes(read_config(config), spec))

    def synthetic_shapes(self, document: Mapping[str, Any]) -> Mapping[str, tuple[int, ...]]:
        """Checkpoint key -> shape of a whole model with this ``config.json``, sorted."""
        config = parse_document(document)
        whole = ModelRange(
            start_layer=0,
            end_layer=config.num_layers,
            owns_embeddings=True,
            owns_final_norm_head=True,
            model_repository="",
            revision="",
        )
        return source_shapes(config, whole)

    def resident_sources(
        self, config: Mapping[str, Any], spec: ModelRange
    ) -> Mapping[str, tuple[RowSource, ...]]:
        """Resident tensor -> the checkpoint tensors whose rows it is made of, in order."""
        return {t.name: t.sources for t in resident_tensors(read_config(config), spec)}

    def states(self, request: LayoutRequest) -> tuple[StateDesign, ...]:
        """The five logical states of a range, in realization order."""
        _check_request(request)
        keys = self.tensor_keys(request.config, request.spec)
        dtype = request.determinism.dtype
        staging = {"whole": CHECKPOINT_NATIVE, "streaming": CHECKPOINT_WINDOW, "none": None}
        return (
            StateDesign(
                id=WEIGHTS,
                semantic_class="immutable_source",
                from_checkpoint=True,
                reconstruction_inputs=None,
                tensor_keys=keys,
                staging_representation=staging[request.staging],
                representation=MERGED + dtype,
                role="required_residency",
                on_device=True,
                forbidden_on_host=True,
                required_by_execution=True,
            ),
            _derived(ROPE, BACKING_SOURCE, ROPE_TABLE, "required_residency", execution=True),
            StateDesign(
                id=KV,
                semantic_class="mutable_authoritative",
                from_checkpoint=False,
                reconstruction_inputs=None,
                tensor_keys=(),
                staging_representation=None,
                representation=CONTIGUOUS_KV + dtype,
                role="mutable_authority",
                on_device=True,
                forbidden_on_host=False,
                required_by_execution=True,
            ),
            _derived(REPLAY, KV, STATE_SNAPSHOT, "required_test_state"),
            _derived(FIXTURE, WEIGHTS, REFERENCE_OUTPUTS, "required_test_state", on_device=False),
        )

    def supports_representation(self, logical_state_id: str, representation: str) -> bool:
        """Whether the adapter can realize the state in the representation."""
        return representation in _FORMS.get(logical_state_id, ())

    def state_of(self, representation: str) -> str:
        """The logical state whose form a representation is.

        Raises:
            PlanError: For a representation that the family does not have.
        """
        for state_id, forms in _FORMS.items():
            if representation in forms:
                return state_id
        raise PlanError("unknown representation", got=repr(representation), where="the plan")

    def tensors(
        self, request: LayoutRequest, representation: str, census: Sequence[CensusEntry]
    ) -> tuple[TensorSpec, ...]:
        """Exact tensors of one representation, in arena order."""
        _check_request(request)
        config = read_config(request.config)
        positions = request.workload.max_positions
        if representation == CHECKPOINT_NATIVE:
            return tuple(
                TensorSpec(name=entry.key, dtype=entry.dtype, shape=entry.shape)
                for entry in needed_entries(read_config(request.config), request.spec, census)
            )
        if representation == CHECKPOINT_WINDOW:
            size = _window_bytes(
                request, needed_entries(read_config(request.config), request.spec, census)
            )
            return (TensorSpec(name="window", dtype="uint8", shape=(size,)),)
        if representation.removeprefix(MERGED) in COMPUTE_DTYPES:
            dtype = representation.removeprefix(MERGED)
            return tuple(
                TensorSpec(name=tensor.name, dtype=dtype, shape=tensor.shape)
                for tensor in resident_tensors(config, request.spec)
            )
        if representation == ROPE_TABLE:
            shape = (positions, config.head_dim // 2)
            return tuple(
                TensorSpec(name=name, dtype="float32", shape=shape) for name in ("cos", "sin")
            )
        if representation.removeprefix(CONTIGUOUS_KV) in COMPUTE_DTYPES:
            return _kv(config, request, representation.removeprefix(CONTIGUOUS_KV))
        if representation == STATE_SNAPSHOT:
            return _kv(config, request, request.determinism.dtype)
        if representation == REFERENCE_OUTPUTS:
            return _outputs(config, request)
        raise PlanError("unknown representation", got=repr(representation), where="the plan")

    def expected_bytes_by_key(
        self, request: LayoutRequest, census: Sequence[CensusEntry]
    ) -> dict[str, int]:
        """Resident bytes that each checkpoint key contributes; they sum to the merged form."""
        needed_entries(read_config(request.config), request.spec, census)
        element_bytes = DTYPE_BYTES[request.determinism.dtype]
        sizes = {
            source.key: TensorSpec(
                name=source.key, dtype="uint8", shape=tensor.source_shape(source)
            ).num_bytes
            * element_bytes
            for tensor in resident_tensors(read_config(request.config), request.spec)
            for source in tensor.sources
        }
        return dict(sorted(sizes.items()))

    def boundaries(self, config: Mapping[str, Any], spec: ModelRange) -> tuple[str, ...]:
        """Boundaries of one step with logits, in execution order.

        A step without logits ends before ``final_norm``.
        """
        read_config(config)
        names = ["token_ids", "embedding"] if spec.owns_embeddings else ["input_plane"]
        for layer in range(spec.start_layer, spec.end_layer):
            names += [f"layers.{layer}.{name}" for name in _LAYER_BOUNDARIES]
        if spec.owns_final_norm_head:
            names += ["final_norm", "logits"]
        return tuple(names)


def _derived(
    state_id: str,
    source: str,
    representation: str,
    role: str,
    *,
    execution: bool = False,
    on_device: bool = True,
) -> StateDesign:
    return StateDesign(
        id=state_id,
        semantic_class="derived_reconstructible",
        from_checkpoint=False,
        reconstruction_inputs=(source,),
        tensor_keys=(),
        staging_representation=None,
        representation=representation,
        role=role,
        on_device=on_device,
        forbidden_on_host=False,
        required_by_execution=execution,
    )


def _check_request(request: LayoutRequest) -> None:
    config = read_config(request.config)
    faults = []
    if request.determinism.dtype not in COMPUTE_DTYPES:
        got, wanted = request.determinism.dtype, ", ".join(COMPUTE_DTYPES)
        faults.append(("$.determinism.dtype", f"{got!r} is not one of {wanted}"))
    if request.staging not in ("whole", "streaming", "none"):
        faults.append(("staging", f"{request.staging!r} is not whole, streaming or none"))
    prompt = request.workload.prompt_token_ids
    if any(not 0 <= token < config.vocab_size for token in prompt):
        faults.append(
            ("$.workload.prompt_token_ids", f"a token is outside [0, {config.vocab_size})")
        )
    needed = len(prompt) + request.workload.decode_steps
    if needed > request.workload.max_positions:
        faults.append(("$.workload.max_positions", f"holds fewer than the {needed} positions used"))
    if config.rope_scaling.kind == "dynamic" and len(prompt) > config.max_position_embeddings:
        # Dynamic frequencies depend on the length seen so far, so a long prompt would mean
        # something else for every way of cutting it into chunks.
        faults.append(
            (
                "$.workload.prompt_token_ids",
                f"dynamic rotary scaling supports prompts up to {config.max_position_embeddings}",
            )
        )
    if faults:
        findings = [Finding(path=p, rule="adapter-request", message=m) for p, m in faults]
        raise PlanError("the adapter cannot realize this request", sorted(findings))


def _window_bytes(request: LayoutRequest, entries: Sequence[CensusEntry]) -> int:
    largest = max(entries, key=lambda entry: (entry.source_bytes, entry.key))
    size = request.staging_window_bytes
    if size is None or size < largest.source_bytes:
        raise PlanError(
            "the staging window is too small",
            expected=f"at least {largest.source_bytes} bytes, for {largest.key}",
            got=str(size),
            where="$.memory_allowances.staging_window_bytes",
            hint="derive the plan with a larger window",
        )
    return size


def _kv(config: LlamaConfig, request: LayoutRequest, dtype: str) -> tuple[TensorSpec, ...]:
    shape = (
        request.spec.end_layer - request.spec.start_layer,
        request.workload.max_positions,
        config.num_kv_heads,
        config.head_dim,
    )
    return tuple(TensorSpec(name=name, dtype=dtype, shape=shape) for name in ("k", "v"))


def _outputs(config: LlamaConfig, request: LayoutRequest) -> tuple[TensorSpec, ...]:
    hidden, vocabulary = config.hidden_size, config.vocab_size
    prompt, steps = len(request.workload.prompt_token_ids), request.workload.decode_steps
    dtype = request.determinism.dtype
    planes = {"prefill.plane": (prompt, hidden), "decode.plane": (steps, hidden)}
    logits = {"prefill.logits": (vocabulary,), "decode.logits": (steps, vocabulary)}
    with_head = request.spec.owns_final_norm_head
    specs = []
    for phase in ("prefill", "decode"):
        name = f"{phase}.plane"
        specs.append(TensorSpec(name=name, dtype=dtype, shape=planes[name]))
        if with_head:
            name = f"{phase}.logits"
            specs.append(TensorSpec(name=name, dtype="float32", shape=logits[name]))
    return tuple(specs)

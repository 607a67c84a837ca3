"""What an adapter's torch-free layout hands to plan checking, deriving and realization.

A layout is pure data and arithmetic about one model family: which checkpoint keys a range of
layers needs, which representations a state can have, and the exact tensors of each. The types
here know no family; every family's ``adapters/<family>/layout.py`` implements
:class:`AdapterLayout`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.plan.records import Determinism, ModelRange, SemanticClass, Workload

DTYPE_BYTES: Mapping[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e8m0fnu": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
}
"""Bytes of one element, by torch's dtype name."""

CHECKPOINT_NATIVE = "checkpoint-native"
"""Whole state staged as it lies in the checkpoint's files."""
CHECKPOINT_WINDOW = "checkpoint-window"
"""A bounded buffer through which state is streamed, one tensor at a time."""
STATE_SNAPSHOT = "state-snapshot"
"""A bytewise copy of every declared tensor of a mutable state."""
REFERENCE_OUTPUTS = "reference-outputs"
"""Planes and logits of the reference fixture, ``prefill.*`` and ``decode.*``."""
STATIC_BUFFERS = "static-buffers"
"""What a recorded decode step takes and gives, at addresses that stay."""
HEAD_BOUNDARIES = ("final_norm", "logits")
"""The last boundaries of a range with a head; a step without logits ends before them."""


_HOST = frozenset({"cpu", "simulated-accelerator"})
KERNEL_SET_UNITS: Mapping[str, frozenset[str]] = {
    "torch-cpu/1": _HOST,
    "torch-cpu-invariant/1": _HOST,
    "native-cpu/1": _HOST,
    "triton/1": frozenset({"cuda-gpu"}),
}
"""Kinds of compute units that a kernel set runs on; one that is not listed runs on any."""
KERNEL_SET_DISTRIBUTIONS: Mapping[str, str] = {"triton/1": "triton"}
"""What a kernel set needs to have installed besides torch."""
KERNEL_SET_LIBRARIES: Mapping[str, str] = {"native-cpu/1": "kernels.native._library"}
"""What a kernel set needs to have built: the place of a library among modules."""

Form = tuple[str, str]
"""A logical state and one of its representations."""


def input_boundaries(spec: ModelRange) -> tuple[str, ...]:
    """The first boundaries of every step over a range, as they are in every family."""
    if spec.owns_embeddings:
        return ("token_ids", "positions", "embedding")
    return ("positions", "input_plane")


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One tensor: its name inside a materialization, dtype (torch's name) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor, without padding."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True)
class CensusEntry:
    """One tensor of a checkpoint, as its file header declares it."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    source_bytes: int
    sha256: str | None
    digest_source: str
    """``none``, ``declared`` or ``measured``."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Tensors of a checkpoint that a range does not need, by the rule that leaves them out."""

    rule: str
    num_tensors: int
    source_bytes: int


@dataclass(frozen=True, kw_only=True)
class SyntheticTensor:
    """One tensor of a made-up checkpoint."""

    shape: tuple[int, ...]
    dtype: str | None = None
    """Torch's name; ``None`` for the type that the checkpoint's ordinary numbers have."""
    bounds: tuple[float, float] | None = None
    """Its numbers lie between these; ``None``: where the generator puts those of its shape."""


@dataclass(frozen=True, kw_only=True)
class LayoutRequest:
    """Everything a layout's arithmetic may depend on."""

    config: Mapping[str, Any]
    """The family's normalized architecture, from :meth:`AdapterLayout.parse_config`."""
    spec: ModelRange
    determinism: Determinism
    workload: Workload
    staging: str
    """``whole``, ``streaming``, or ``none`` where the source is read straight into residency."""
    staging_window_bytes: int | None = None
    eviction_policy: str | None = None
    representations: Mapping[str, str] = field(default_factory=dict)
    """Logical state -> form of its persistent copy, where it was chosen; else the family's own."""


@dataclass(frozen=True, kw_only=True)
class StateDesign:
    """One logical state and the materializations an adapter proposes for it."""

    id: str
    semantic_class: SemanticClass
    from_checkpoint: bool
    reconstruction_inputs: tuple[str, ...] | None
    tensor_keys: tuple[str, ...]
    """Checkpoint keys whose bytes make this state; empty for mutable and derived state."""
    staging_representation: str | None
    """Form of the transient host copy, or ``None`` when the state is never staged."""
    representation: str
    """Form of the persistent copy."""
    role: str
    on_device: bool
    """Whether the persistent copy lives in the device's memory (else in system RAM)."""
    forbidden_on_host: bool
    required_by_execution: bool


class AdapterLayout(Protocol):
    """A family's layout. Implementations are stateless and import no torch."""

    @property
    def family(self) -> str:
        """Name used in ``adapter_data.family``."""

    @property
    def strategy_units(self) -> frozenset[str]:
        """Executions the adapter can run (rule 17)."""

    @property
    def kernel_sets(self) -> Mapping[str, bool]:
        """Kernel sets that are built, each with whether it is batch invariant."""

    @property
    def acceptance_checks(self) -> tuple[str, ...]:
        """Checks, beyond those of every plan, that decide the verdict of this family's plans."""

    @property
    def eviction_policies(self) -> frozenset[str]:
        """Policies by which mutable state may be let go before the end of a session."""

    @property
    def boundaries_version(self) -> str:
        """Version of the static ordered boundary list."""

    def parse_config(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Normalize a model's ``config.json``; refuse by name what is not supported."""

    def synthetic_tensors(
        self, document: Mapping[str, Any], layers: tuple[int, int] | None = None
    ) -> Mapping[str, SyntheticTensor]:
        """What a made-up checkpoint with this ``config.json`` holds, by key, sorted.

        Args:
            document: The ``config.json``.
            layers: First layer and the one after the last, where not all are wanted. The embedding
                comes with the first layer of the model, the head with its last one.

        Raises:
            InvalidInputError: When the layers are not within the model.
        """

    def tensor_keys(
        self,
        config: Mapping[str, Any],
        spec: ModelRange,
        representations: Mapping[str, str] | None = None,
    ) -> tuple[str, ...]:
        """Checkpoint keys that the range needs in these forms, or the family's own, sorted."""

    def account(
        self,
        config: Mapping[str, Any],
        spec: ModelRange,
        census: Sequence[CensusEntry],
        representations: Mapping[str, str] | None = None,
    ) -> tuple[LeftOut, ...]:
        """Account for every tensor of a whole checkpoint: needed, or left out by a rule.

        Raises:
            PlanError: Naming what is missing, misshapen, or there without a rule to leave it out.
        """

    def states(self, request: LayoutRequest) -> tuple[StateDesign, ...]:
        """The logical states of the range, in realization order."""

    def supports_representation(self, logical_state_id: str, representation: str) -> bool:
        """Whether the adapter can realize the state in the representation (rule 8)."""

    def tensors(
        self,
        request: LayoutRequest,
        logical_state_id: str,
        representation: str,
        census: Sequence[CensusEntry],
    ) -> tuple[TensorSpec, ...]:
        """Exact tensors of one state in one representation, in arena order."""

    def expected_bytes_by_key(
        self, request: LayoutRequest, census: Sequence[CensusEntry]
    ) -> dict[str, int]:
        """Resident bytes that each checkpoint key contributes."""

    def boundaries(self, config: Mapping[str, Any], spec: ModelRange) -> tuple[str, ...]:
        """Names of the boundaries of one step with logits, in execution order.

        A layer's are named ``layers.<global number>.<name>``; a step without logits ends before
        :data:`HEAD_BOUNDARIES`.
        """

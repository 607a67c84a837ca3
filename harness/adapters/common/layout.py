"""The part of a layout that is the same in every family: states, forms, bytes and refusals.

A family declares its resident tensors, its derived tables and its mutable state; from these follow
the designs of its logical states and the exact tensors of each representation. Pure arithmetic;
imports no torch and knows no family.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from harness.adapters.common.census import count_left_out
from harness.adapters.common.designs import (
    BACKING_SOURCE,
    buffer_tensors,
    derived_state,
    immutable_state,
    mutable_state,
    reference_tensors,
    window_tensors,
)
from harness.adapters.common.rows import (
    ResidentTensor,
    needed_entries,
    resident_bytes_by_key,
    source_shapes,
)
from harness.adapters.common.synthetic import layers_to_make, stored_tensors
from harness.errors import PlanError
from harness.plan.layout import (
    CHECKPOINT_NATIVE,
    CHECKPOINT_WINDOW,
    REFERENCE_OUTPUTS,
    STATE_SNAPSHOT,
    STATIC_BUFFERS,
    CensusEntry,
    LayoutRequest,
    LeftOut,
    StateDesign,
    SyntheticTensor,
    TensorSpec,
)
from harness.plan.records import RECORDED, Finding, ModelRange

COMPUTE_DTYPES = ("bfloat16", "float32")

WEIGHTS = "state.weights"
REPLAY = "state.replay-baseline"
FIXTURE = "state.reference-fixture"
DECODE_BUFFERS = "state.decode-buffers"

_STAGING = {"whole": CHECKPOINT_NATIVE, "streaming": CHECKPOINT_WINDOW, "none": None}


class FamilyLayout(ABC):
    """A family's :class:`harness.plan.layout.AdapterLayout`, but for what only it knows."""

    family: ClassVar[str]
    strategy_units: ClassVar[frozenset[str]]
    boundaries_version: ClassVar[str]
    kernel_sets: ClassVar[Mapping[str, bool]]
    acceptance_checks: ClassVar[tuple[str, ...]] = ()
    eviction_policies: ClassVar[frozenset[str]] = frozenset()
    is_paged: ClassVar[bool] = False
    """Whether the mutable state lies in pages."""

    resident_forms: ClassVar[Mapping[str, str]]
    """Immutable state -> name of its merged representation, without its compute dtype.

    No two states have the same: a resident tensor is named by its form.
    """
    bank_staging: ClassVar[frozenset[str]] = frozenset()
    """Staging representations whose tensors are those of the residency, not of the files."""
    derived_forms: ClassVar[Mapping[str, str]]
    """Logical state that is reconstructed and read by the execution -> its one representation."""
    mutable_state: ClassVar[str] = "state.kv"
    mutable_form: ClassVar[str]
    """Name of the mutable state's representation, without its compute dtype."""

    @abstractmethod
    def parse_config(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Normalize a ``config.json``; every unsupported field is refused by name."""

    @abstractmethod
    def residents(
        self, config: Mapping[str, Any], spec: ModelRange
    ) -> Mapping[str, tuple[ResidentTensor, ...]]:
        """Resident tensors of each immutable state that the range has, in arena order."""

    @abstractmethod
    def derived_tensors(self, request: LayoutRequest, state_id: str) -> tuple[TensorSpec, ...]:
        """Tensors of one derived state."""

    @abstractmethod
    def mutable_tensors(self, request: LayoutRequest, dtype: str) -> tuple[TensorSpec, ...]:
        """Declared tensors of the mutable state, in a compute dtype."""

    @abstractmethod
    def boundaries(self, config: Mapping[str, Any], spec: ModelRange) -> tuple[str, ...]:
        """Boundaries of one step with logits, in execution order."""

    @abstractmethod
    def sizes(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Hidden size and vocabulary size."""

    def forms(self, state_id: str, dtype: str) -> tuple[str, ...]:
        """Representations of an immutable state in a compute dtype, the family's own first."""
        return (self.resident_forms[state_id] + dtype,)

    def mutable_forms(self, dtype: str) -> tuple[str, ...]:
        """Representations of the mutable state in a compute dtype, the family's own first."""
        return (self.mutable_form + dtype,)

    def form_tensors(
        self, config: Mapping[str, Any], spec: ModelRange, state_id: str, form: str
    ) -> tuple[ResidentTensor, ...]:
        """Resident tensors of one immutable state in one of its forms, in arena order."""
        del form
        return self.residents(config, spec).get(state_id, ())

    def staging_form(self, request: LayoutRequest, state_id: str) -> str | None:
        """Representation in which an immutable state is staged, or ``None``."""
        del state_id
        return _STAGING[request.staging]

    def derived_in(self, request: LayoutRequest) -> Mapping[str, str]:
        """Derived states that an execution of this request reads, each with its form."""
        del request
        return self.derived_forms

    def chosen_form(self, request: LayoutRequest, state_id: str) -> str:
        """Form of an immutable state's persistent copy: the one asked for, or the family's own."""
        own = self.forms(state_id, request.determinism.dtype)[0]
        return request.representations.get(state_id, own)

    def chosen_residents(self, request: LayoutRequest) -> Mapping[str, tuple[ResidentTensor, ...]]:
        """Resident tensors of every immutable state that the range has, as they were chosen."""
        chosen = {
            state_id: self.form_tensors(
                request.config, request.spec, state_id, self.chosen_form(request, state_id)
            )
            for state_id in self.resident_forms
        }
        return {state_id: tensors for state_id, tensors in chosen.items() if tensors}

    def faults(self, request: LayoutRequest) -> list[tuple[str, str]]:
        """What else the family cannot realize of a request, as (path, message)."""
        return []

    def tensor_keys(
        self,
        config: Mapping[str, Any],
        spec: ModelRange,
        representations: Mapping[str, str] | None = None,
    ) -> tuple[str, ...]:
        """Checkpoint keys that the range needs in these forms, or the family's own, sorted."""
        return tuple(source_shapes(self._all_residents(config, spec, representations or {})))

    @abstractmethod
    def left_out_by(
        self, config: Mapping[str, Any], spec: ModelRange, census: Sequence[CensusEntry]
    ) -> Mapping[str, str]:
        """Key -> rule, for every tensor of a checkpoint that a rule leaves out.

        Raises:
            PlanError: Naming every tensor that contradicts the configuration.
        """

    def known_keys(self, config: Mapping[str, Any], spec: ModelRange) -> frozenset[str]:
        """Keys that the range needs, and those of the whole model."""
        whole = layers_to_make(int(config["num_layers"]), None)
        return frozenset((*self.tensor_keys(config, spec), *self.tensor_keys(config, whole)))

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
        rules = self.left_out_by(config, spec, census)
        residents = self._all_residents(config, spec, representations or {})
        needed = {entry.key for entry in needed_entries(residents, census)}
        return count_left_out(census, needed, rules)

    def synthetic_tensors(
        self, document: Mapping[str, Any], layers: tuple[int, int] | None = None
    ) -> Mapping[str, SyntheticTensor]:
        """What a made-up checkpoint with this ``config.json`` holds, by key, sorted.

        Raises:
            InvalidInputError: When the layers are not within the model.
        """
        config = self.parse_config(document)
        made = layers_to_make(int(config["num_layers"]), layers)
        return stored_tensors(self._all_residents(config, made, {}))

    def states(self, request: LayoutRequest) -> tuple[StateDesign, ...]:
        """The logical states of a range, in realization order."""
        self._check(request)
        dtype = request.determinism.dtype
        residents = self.chosen_residents(request)
        immutable = [
            immutable_state(
                state_id,
                tuple(source_shapes(tensors)),
                self.staging_form(request, state_id),
                self.chosen_form(request, state_id),
            )
            for state_id, tensors in residents.items()
        ]
        derived = [
            derived_state(state_id, (BACKING_SOURCE,), form, "required_residency", execution=True)
            for state_id, form in self.derived_in(request).items()
        ]
        own = self.mutable_forms(dtype)[0]
        test, inputs = "required_test_state", tuple(design.id for design in immutable)
        if request.workload.decode_mode == RECORDED:
            buffers = derived_state(DECODE_BUFFERS, inputs, STATIC_BUFFERS, test, execution=True)
            derived.append(buffers)
        return (
            *immutable,
            *derived,
            mutable_state(self.mutable_state, request.representations.get(self.mutable_state, own)),
            derived_state(REPLAY, (self.mutable_state,), STATE_SNAPSHOT, test),
            derived_state(FIXTURE, inputs, REFERENCE_OUTPUTS, test, on_device=False),
        )

    def supports_representation(self, logical_state_id: str, representation: str) -> bool:
        """Whether the adapter can realize the state in the representation."""
        if logical_state_id in self.resident_forms:
            staged = (CHECKPOINT_NATIVE, CHECKPOINT_WINDOW, *self.bank_staging)
            return representation in (*staged, *self._all_forms(logical_state_id))
        if logical_state_id in self.derived_forms:
            return representation == self.derived_forms[logical_state_id]
        if logical_state_id == self.mutable_state:
            return self.is_mutable(representation)
        return (logical_state_id, representation) in (
            (REPLAY, STATE_SNAPSHOT),
            (FIXTURE, REFERENCE_OUTPUTS),
            (DECODE_BUFFERS, STATIC_BUFFERS),
        )

    def is_resident(self, representation: str) -> bool:
        """Whether a representation is a persistent one of an immutable state."""
        return any(representation in self._all_forms(state_id) for state_id in self.resident_forms)

    def is_mutable(self, representation: str) -> bool:
        """Whether a representation is one of the mutable state."""
        return any(representation in self.mutable_forms(dtype) for dtype in COMPUTE_DTYPES)

    def tensors(
        self,
        request: LayoutRequest,
        logical_state_id: str,
        representation: str,
        census: Sequence[CensusEntry],
    ) -> tuple[TensorSpec, ...]:
        """Exact tensors of one state in one representation, in arena order.

        Raises:
            PlanError: When the family has no such form of that state.
        """
        self._check(request)
        if not self.supports_representation(logical_state_id, representation):
            raise PlanError(
                "unknown representation",
                got=f"{representation!r} of {logical_state_id}",
                where="the plan",
            )
        if logical_state_id in self.resident_forms:
            return self._immutable(request, logical_state_id, representation, census)
        if logical_state_id in self.derived_forms:
            return self.derived_tensors(request, logical_state_id)
        if representation == REFERENCE_OUTPUTS:
            return reference_tensors(request, *self.sizes(request.config))
        if representation == STATIC_BUFFERS:
            return buffer_tensors(request, *self.sizes(request.config))
        dtypes = [d for d in COMPUTE_DTYPES if representation in self.mutable_forms(d)]
        return self.mutable_tensors(request, (dtypes or [request.determinism.dtype])[0])

    def expected_bytes_by_key(
        self, request: LayoutRequest, census: Sequence[CensusEntry]
    ) -> dict[str, int]:
        """Resident bytes that each checkpoint key contributes; they sum to the merged forms."""
        residents = self._all_residents(request.config, request.spec, request.representations)
        needed_entries(residents, census)
        return resident_bytes_by_key(residents, request.determinism.dtype)

    def _all_forms(self, state_id: str) -> tuple[str, ...]:
        return tuple(form for dtype in COMPUTE_DTYPES for form in self.forms(state_id, dtype))

    def _all_residents(
        self, config: Mapping[str, Any], spec: ModelRange, representations: Mapping[str, str]
    ) -> tuple[ResidentTensor, ...]:
        # Which keys a form needs, and their shapes, do not depend on the compute dtype.
        tensors: list[ResidentTensor] = []
        for state_id in self.resident_forms:
            form = representations.get(state_id, self.forms(state_id, COMPUTE_DTYPES[0])[0])
            tensors.extend(self.form_tensors(config, spec, state_id, form))
        return tuple(tensors)

    def _immutable(
        self,
        request: LayoutRequest,
        state_id: str,
        representation: str,
        census: Sequence[CensusEntry],
    ) -> tuple[TensorSpec, ...]:
        config, spec = request.config, request.spec
        if self.is_resident(representation) or representation in self.bank_staging:
            tensors = self.form_tensors(config, spec, state_id, representation)
            dtypes = [d for d in COMPUTE_DTYPES if representation in self.forms(state_id, d)]
            # A form that is the same in every compute dtype names its types itself.
            dtype = (dtypes if len(dtypes) == 1 else [request.determinism.dtype])[0]
            return tuple(tensor.spec(dtype) for tensor in tensors)
        residents = self.form_tensors(config, spec, state_id, self.chosen_form(request, state_id))
        entries = needed_entries(residents, census)
        if representation == CHECKPOINT_NATIVE:
            return tuple(TensorSpec(name=e.key, dtype=e.dtype, shape=e.shape) for e in entries)
        return window_tensors(request, entries)

    def _check(self, request: LayoutRequest) -> None:
        _, vocab_size = self.sizes(request.config)
        workload = request.workload
        faults = []
        if request.determinism.dtype not in COMPUTE_DTYPES:
            got, wanted = request.determinism.dtype, ", ".join(COMPUTE_DTYPES)
            faults.append(("$.determinism.dtype", f"{got!r} is not one of {wanted}"))
        if request.staging not in _STAGING:
            faults.append(("staging", f"{request.staging!r} is not whole, streaming or none"))
        for field in ("prompt_token_ids", "decode_token_ids"):
            if any(not 0 <= token < vocab_size for token in getattr(workload, field) or ()):
                message = f"a token is outside [0, {vocab_size})"
                faults.append((f"$.workload.{field}", message))
        needed = len(workload.prompt_token_ids) + workload.decode_steps
        if needed > workload.max_positions:
            message = f"holds fewer than the {needed} positions used"
            faults.append(("$.workload.max_positions", message))
        if request.eviction_policy not in (None, *self.eviction_policies):
            known = ", ".join(sorted(self.eviction_policies)) or "none"
            message = f"{request.eviction_policy!r} is not built; known: {known}"
            faults.append(("$.eviction_policy", message))
        faults += [
            ("$.materializations", f"{state_id!r} cannot be {form!r} in this compute dtype")
            for state_id, form in request.representations.items()
            if form not in self._forms_of(state_id, request.determinism.dtype)
        ]
        if workload.decode_mode not in (None, RECORDED):
            message = f"{workload.decode_mode!r} is not {RECORDED}; absent, steps run one by one"
            faults.append(("$.workload.decode_mode", message))
        elif workload.decode_mode == RECORDED and not request.spec.owns_embeddings:
            message = "steps of a range without embeddings are not recorded"
            faults.append(("$.workload.decode_mode", message))
        if workload.page_size is not None and not self.is_paged:
            faults.append(("$.workload.page_size", "the family's mutable state is not paged"))
        faults += self.faults(request)
        if faults:
            findings = [Finding(path=p, rule="adapter-request", message=m) for p, m in faults]
            raise PlanError("the adapter cannot realize this request", sorted(findings))

    def _forms_of(self, state_id: str, dtype: str) -> tuple[str, ...]:
        """Persistent forms of any state in a compute dtype."""
        if state_id in self.resident_forms:
            return self.forms(state_id, dtype)
        if state_id == self.mutable_state:
            return self.mutable_forms(dtype)
        others = {
            REPLAY: STATE_SNAPSHOT,
            FIXTURE: REFERENCE_OUTPUTS,
            DECODE_BUFFERS: STATIC_BUFFERS,
            **self.derived_forms,
        }
        return (others[state_id],) if state_id in others else ()

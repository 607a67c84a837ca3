"""Designs of the states that every family has, and the tensors of those that no family shapes.

Pure arithmetic; imports no torch and knows no family.
"""

from collections.abc import Sequence

from harness.errors import PlanError
from harness.plan.layout import CensusEntry, LayoutRequest, StateDesign, TensorSpec

BACKING_SOURCE = "checkpoint"


def immutable_state(
    state_id: str, keys: Sequence[str], staging_form: str | None, form: str
) -> StateDesign:
    """A state that the checkpoint's tensors ``keys`` make, and that has no host copy to stay."""
    return StateDesign(
        id=state_id,
        semantic_class="immutable_source",
        from_checkpoint=True,
        reconstruction_inputs=None,
        tensor_keys=tuple(keys),
        staging_representation=staging_form,
        representation=form,
        role="required_residency",
        on_device=True,
        forbidden_on_host=True,
        required_by_execution=True,
    )


def mutable_state(state_id: str, form: str) -> StateDesign:
    """The state that its one owner changes."""
    return StateDesign(
        id=state_id,
        semantic_class="mutable_authoritative",
        from_checkpoint=False,
        reconstruction_inputs=None,
        tensor_keys=(),
        staging_representation=None,
        representation=form,
        role="mutable_authority",
        on_device=True,
        forbidden_on_host=False,
        required_by_execution=True,
    )


def derived_state(
    state_id: str,
    inputs: tuple[str, ...],
    form: str,
    role: str,
    *,
    execution: bool = False,
    on_device: bool = True,
) -> StateDesign:
    """A state that can be made again from ``inputs``; ``execution`` says whether one reads it."""
    return StateDesign(
        id=state_id,
        semantic_class="derived_reconstructible",
        from_checkpoint=False,
        reconstruction_inputs=inputs,
        tensor_keys=(),
        staging_representation=None,
        representation=form,
        role=role,
        on_device=on_device,
        forbidden_on_host=False,
        required_by_execution=execution,
    )


def window_tensors(
    request: LayoutRequest, entries: Sequence[CensusEntry]
) -> tuple[TensorSpec, ...]:
    """The one buffer through which a state is streamed.

    Raises:
        PlanError: When the largest tensor does not fit into it.
    """
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
    return (TensorSpec(name="window", dtype="uint8", shape=(size,)),)


def buffer_tensors(request: LayoutRequest, hidden: int, vocabulary: int) -> tuple[TensorSpec, ...]:
    """Input and outputs of a recorded decode step."""
    dtype = request.determinism.dtype
    taken = [TensorSpec(name=name, dtype="int64", shape=(1,)) for name in ("token_id", "position")]
    plane = TensorSpec(name="plane", dtype=dtype, shape=(1, hidden))
    logits = TensorSpec(name="logits", dtype="float32", shape=(vocabulary,))
    return (*taken, plane, logits) if request.spec.owns_final_norm_head else (*taken, plane)


def reference_tensors(
    request: LayoutRequest, hidden: int, vocabulary: int
) -> tuple[TensorSpec, ...]:
    """Planes, and with a head logits, of every phase of the reference fixture."""
    prompt, steps = len(request.workload.prompt_token_ids), request.workload.decode_steps
    dtype = request.determinism.dtype
    planes = {"prefill": (prompt, hidden), "decode": (steps, hidden)}
    logits = {"prefill": (vocabulary,), "decode": (steps, vocabulary)}
    specs = []
    for phase in ("prefill", "decode"):
        specs.append(TensorSpec(name=f"{phase}.plane", dtype=dtype, shape=planes[phase]))
        if request.spec.owns_final_norm_head:
            specs.append(TensorSpec(name=f"{phase}.logits", dtype="float32", shape=logits[phase]))
    return tuple(specs)

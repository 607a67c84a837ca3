"""The declared checks: every id that a plan may list, and what it means in one line.

Data only. The auditor implements each. Every acceptance check decides the verdict of every native
plan, so that no plan can leave out what it would not pass.
"""

from collections.abc import Mapping, Sequence

from harness.plan.records import (
    ACCELERATOR_VRAM,
    CheckLimit,
    Checks,
    MemoryAllowances,
    Resources,
)

ACCEPTANCE: Mapping[str, str] = {
    "integrity.tables": "every table the record names exists, with its digest, rows and columns",
    "integrity.source": "every fetched tensor has the digest that the manifest pins",
    "trials.completed": "every child process of every realization ran to its end",
    "plan.binding": "the recorded binding is the one that plan and environment give",
    "realization.materializations": "each materialization has the planned status, form and bytes",
    "realization.authorities": "the planned owners, and only they, hold the planned lineages",
    "realization.executions": "each execution was active on its bound compute unit",
    "realization.release": "each staging was released, by qualifying residencies, to zero bytes",
    "tensors.expected": "resident tensors equal the reference transform of the checkpoint",
    "tensors.unchanged": "resident tensors are the same after decode as after population",
    "memory.unplanned": "no more bytes than the limit grew outside the planned arenas",
    "memory.ledger": "the ledger agrees with the materializations at every checkpoint",
    "memory.invariants": "the process figures of every checkpoint are consistent",
    "memory.release": "after release no staging page, mapping or descriptor remains",
    "steps.complete": "every planned step was executed once, in order, without a gap",
    "steps.repeat": "repetitions and realizations agree bit for bit",
    "state.selfproof": "decode changed the mutable state and restore brought it back",
    "correctness.exact": "outputs equal the reference fixture bit for bit",
    "numbers.finite": "no output holds NaN or infinity",
    "sentinels.canaries": "each sentinel fired on its planted canary first",
    "sentinels.zero": "each sentinel counted zero of the real thing",
    "summaries.agree": "the producer's summaries equal what its tables give",
    "result.digest": "the result digest equals the one recomputed from the tables",
}
"""Checks that decide the verdict of every plan, and all of them must be declared."""

STATE_CHECKS: Mapping[str, str] = {
    "state.ownership": "every position held has a slot of its own, and no slot is lost",
}
"""Checks that decide the verdict where an adapter asks for them, and must be declared there."""

DEVICE_CHECKS: Mapping[str, str] = {
    "memory.device": "the allocator's blocks are the planned ones, and little else is in use",
}
"""Checks that decide the verdict where a plan uses a memory that only its driver can measure."""

STAGE_CHECKS: Mapping[str, str] = {
    "stages.complete": "each stage met the others as the plan has them, with one nonce and code",
    "stages.crossings": "each plane that a stage put out reached the next one, bit for bit",
    "stages.tokens": "each token that the last stage chose came back to the first",
    "stages.shared_state": "tensors that several stages hold are the same on each of them",
}
"""Checks that decide the verdict where a plan has stages, and must be declared there."""

NODE_CHECKS: Mapping[str, str] = {
    "stages.machines": "each stage ran on the machine that its node is bound to",
}
"""Checks that decide the verdict where each stage has a node, and must be declared there."""

TELEMETRY: Mapping[str, str] = {
    "step.times": "duration of each step",
    "memory.resident": "resident memory of each checkpoint",
}
"""Checks that are only reported."""

UNPLANNED_BYTES = "memory.unplanned"
RESIDENT_BYTES = "memory.resident"
LIMITED = frozenset({UNPLANNED_BYTES, RESIDENT_BYTES})
"""Checks that read a limit, in bytes."""


def device_checks(resources: Resources) -> tuple[str, ...]:
    """The checks that a plan's memories ask for."""
    memories = (memory for node in resources.nodes for memory in node.memory_resources)
    return tuple(DEVICE_CHECKS) if any(m.kind == ACCELERATOR_VRAM for m in memories) else ()


def stage_checks(*, has_stages: bool, has_nodes: bool) -> tuple[str, ...]:
    """The checks that a chain of stages asks for, on one machine or on several."""
    return (*(STAGE_CHECKS if has_stages else ()), *(NODE_CHECKS if has_nodes else ()))


def default_checks(allowances: MemoryAllowances, own: Sequence[str] = ()) -> Checks:
    """Every acceptance check, ``own`` included, and every telemetry, with the plan's allowance."""
    limits = {UNPLANNED_BYTES: allowances.unplanned_host_bytes}
    return Checks(
        acceptance=tuple(
            CheckLimit(id=name, limit=limits.get(name)) for name in (*ACCEPTANCE, *own)
        ),
        telemetry=tuple(CheckLimit(id=name) for name in TELEMETRY),
    )

"""The result document that a passing run of a published plan must have written.

Computed from the plan's records and from the published names (data). Leaves that no plan
determines are :class:`~harness.reconcile.compare.Free`.
"""

from collections.abc import Mapping
from typing import Any

from harness.canonical import bare_hex
from harness.plan.documents import to_document
from harness.plan.load import LoadedPlan
from harness.plan.published import result_r1 as names
from harness.plan.records import Materialization, Plan
from harness.reconcile.compare import Free


def expected_result(loaded: LoadedPlan) -> dict[str, Any]:
    """Compute the whole expected result document of a loaded published plan."""
    plan = loaded.plan
    return {
        "schema": names.RESULT_SCHEMA,
        "status": names.PASSED_STATUS,
        "passed": True,
        "plan": {
            "digest": plan.digest,
            "file_sha256": bare_hex(loaded.file_digest),
            "model": plan.model_repository,
            "revision": plan.model_revision,
            "schema": plan.schema,
            "version": plan.plan_version,
        },
        "validation": {
            "digest": plan.digest,
            "passed": True,
            "required_bytes_by_memory": required_bytes_by_memory(plan),
        },
        "intended": {
            "authorities": to_document(plan.authorities),
            "execution": to_document(plan.execution),
            "logical_state_units": to_document(plan.logical_state_units),
            "materializations": to_document(plan.materializations),
        },
        "observed": {
            "authorities": _authorities(plan),
            "execution": _execution(plan),
            "materializations": [
                _materialization(plan, intent) for intent in plan.materializations
            ],
            "process_checkpoints": [
                _checkpoint(plan, index) for index in range(len(names.CHECKPOINT_LABELS))
            ],
        },
        "reconciliation": {
            "mismatches": [],
            "passed": True,
            "planned_not_realized": [],
            "unplanned_persistent": [],
        },
        "memory": _memory(plan),
        "correctness": _correctness(plan),
        "resources": _resources(plan),
        "backend_execution": names.BACKEND_EXECUTION,
        "provenance": {name: Free(form="text", reason="declared") for name in names.PROVENANCE},
        "scope": names.SCOPE,
    }


def _is_required(intent: Materialization) -> bool:
    return intent.requirement == "required" and intent.persistence == "persistent"


def required_bytes_by_memory(plan: Plan) -> dict[str, int]:
    """Sum the bytes of required persistent materializations, per memory."""
    totals: dict[str, int] = {}
    for intent in filter(_is_required, plan.materializations):
        memory = intent.memory_resource_id
        totals[memory] = totals.get(memory, 0) + intent.expected_bytes
    return totals


def selected_bytes(plan: Plan, selector: str) -> int:
    """Sum the planned bytes of one group of materializations (see the published names)."""
    staged = {
        intent.logical_state_id for intent in plan.materializations if intent.role == "staging"
    }
    return sum(
        intent.expected_bytes
        for intent in plan.materializations
        if _selector(intent, staged) == selector
    )


def _selector(intent: Materialization, staged: set[str]) -> str:
    if intent.role != "required_residency":
        return intent.role
    return "staged_residency" if intent.logical_state_id in staged else "unstaged_residency"


def qualifying_ids(plan: Plan, staging: Materialization) -> list[str]:
    """Ids of the other required persistent materializations of a staging's state, sorted."""
    return sorted(
        other.id
        for other in plan.materializations
        if other.id != staging.id
        and other.logical_state_id == staging.logical_state_id
        and _is_required(other)
    )


def _materialization(plan: Plan, intent: Materialization) -> dict[str, Any]:
    realized = intent.requirement == "required" or intent.realize is True
    is_released = intent.role == "staging"
    row: dict[str, Any] = {
        "materialization_id": intent.id,
        "logical_state_id": intent.logical_state_id,
        "actual_memory_resource_id": intent.memory_resource_id,
        "actual_representation": intent.representation,
        "intended_memory_resource_id": intent.memory_resource_id,
        "intended_persistence": intent.persistence,
        "intended_representation": intent.representation,
        "intended_role": intent.role,
        "lifecycle_state": "live",
        "observed_bytes": intent.expected_bytes,
        "persistence": intent.persistence,
        "status": "PLANNED_AND_REALIZED",
    }
    if not realized:
        row |= {
            "actual_memory_resource_id": None,
            "actual_representation": None,
            "lifecycle_state": "absent",
            "observed_bytes": 0,
            "status": "OPTIONAL_NOT_REALIZED",
        }
    elif is_released:
        row |= {
            "lifecycle_state": "released",
            "observed_bytes_after_release": 0,
            "observed_bytes_before_release": intent.expected_bytes,
            "release_qualifying_materialization_ids": qualifying_ids(plan, intent),
            "released_bytes": intent.expected_bytes,
            "status": "TRANSIENT_RELEASED_AS_PLANNED",
        }
    return row


def _authorities(plan: Plan) -> list[dict[str, Any]]:
    memories = {intent.id: intent.memory_resource_id for intent in plan.materializations}
    return [
        {**to_document(authority), "memory_resource_id": memories.get(authority.materialization_id)}
        for authority in plan.authorities
    ]


def _execution(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "compute_unit_id": execution.compute_unit_id,
            "execution_id": execution.id,
            "status": names.EXECUTION_STATUS,
            "strategy_unit": execution.strategy_unit,
        }
        for execution in plan.execution
    ]


def _at(plan: Plan, table: Mapping[str, tuple[str, int, int]], index: int) -> dict[str, int]:
    """Planned bytes of each field at one checkpoint."""
    return {
        field: selected_bytes(plan, selector) if first <= index < end else 0
        for field, (selector, first, end) in table.items()
    }


def declared_device_bytes(plan: Plan, index: int) -> int:
    """Sum the device bytes that a run declares at one checkpoint."""
    return sum(
        sum(_at(plan, table, index).values()) for table in (names.DEVICE_BYTES, names.DEVICE_ROLES)
    )


def host_evidence_roles() -> dict[str, int]:
    """Bytes of the host state that a run holds on purpose after release, by role."""
    return {**dict.fromkeys(names.EMPTY_HOST_ROLES, 0), names.REFERENCE_ROLE: names.REFERENCE_BYTES}


def _host_roles(index: int) -> dict[str, int]:
    if index == 0:
        return {}
    if index < names.RELEASE_INDEX:
        return {names.REFERENCE_ROLE: names.REFERENCE_BYTES}
    return host_evidence_roles()


def _telemetry(bound: str) -> Free:
    return Free(form="count", reason="telemetry", bound=bound)


def _checkpoint(plan: Plan, index: int) -> dict[str, Any]:
    roles = _at(plan, names.DEVICE_ROLES, index)
    resident = Free(form="count", reason=None)  # RSS is the sum of its parts
    peak = "at least RSS, not falling, within the memory"
    counter = _telemetry("not falling")
    return {
        "label": names.CHECKPOINT_LABELS[index],
        "measurement_status": names.MEASUREMENT_STATUS,
        **_at(plan, names.HOST_BYTES, index),
        **_at(plan, names.DEVICE_BYTES, index),
        names.DEVICE_ROLES_FIELD: {role: count for role, count in roles.items() if count},
        names.HOST_ROLES_FIELD: _host_roles(index),
        names.DEVICE_ALLOCATED: _telemetry("at least the declared bytes, at most the peak"),
        names.DEVICE_PEAK: _telemetry("at least allocated, not falling, within the memory"),
        "process": {
            "RssAnon_kib": resident,
            "RssFile_kib": resident,
            "RssShmem_kib": resident,
            "VmHWM_kib": _telemetry(peak),
            "VmRSS_kib": resident,
            "VmSwap_kib": _telemetry(""),
        },
        "ru_maxrss_kib": _telemetry("not falling, within the memory"),
        "vmstat": {
            "pgfault": _telemetry("not falling, at least the major faults"),
            "pgmajfault": counter,
            "pswpin": counter,
            "pswpout": counter,
        },
    }


def _memory(plan: Plan) -> dict[str, Any]:
    staging = selected_bytes(plan, "staging")
    optional = sum(
        intent.expected_bytes
        for intent in plan.materializations
        if intent.requirement == "optional" and intent.realize is True
    )
    expectations = plan.memory_expectations
    return {
        "host_staging_bytes_after_repeated_execution": 0,
        "host_staging_bytes_before_release": staging,
        "persistent_host_evidence_bytes": names.REFERENCE_BYTES,
        "persistent_host_evidence_roles": host_evidence_roles(),
        "persistent_optional_bytes": optional,
        "persistent_required_bytes": sum(required_bytes_by_memory(plan).values()),
        "transient_upper_bound_bytes": Free(
            form="count", reason="calculated", bound="at least the staging bytes"
        ),
        "transient_upper_bound_status": names.TRANSIENT_BOUND_STATUS,
        "unexplained_persistent_host_mirror_bytes": (
            expectations.unexplained_persistent_host_mirror_bytes
        ),
        "unplanned_persistent_bytes": expectations.unplanned_persistent_bytes,
    }


def _phase(extra: Mapping[str, Any]) -> dict[str, Any]:
    exact = {
        "atol": names.TOLERANCE,
        "bounded_equivalence": True,
        "exact_equality": True,
        "inf_count": 0,
        "max_absolute_deviation": 0.0,
        "max_relative_deviation": 0.0,
        "nan_count": 0,
        "passed": True,
        "rtol": names.TOLERANCE,
    }
    return {"input": exact, "output": exact, "passed": True, **extra}


def _correctness(plan: Plan) -> dict[str, Any]:
    spec = plan.adapter_data.spec
    num_staging = (spec.end_layer - spec.start_layer) * names.STAGING_TENSORS_PER_LAYER
    return {
        "dead_staging_tensor_count": num_staging,
        "decode_runs": [_phase({"repetition": run}) for run in range(names.NUM_DECODE_RUNS)],
        "passed": True,
        "post_release_loader_sentinels": dict.fromkeys(names.LOADER_SENTINELS, 0),
        "prefill": _phase({}),
        "resident_source_access_attempts": 0,
        "staging_tensor_count": num_staging,
    }


def _resources(plan: Plan) -> dict[str, Any]:
    memories = {
        memory.kind: memory.capacity_bytes
        for node in plan.resources.nodes
        for memory in node.memory_resources
    }
    units = [unit for node in plan.resources.nodes for unit in node.compute_units]
    physical: dict[str, Any] = {
        name: [Free(form="count", reason="telemetry")] * 2
        if form == "integers"
        else Free(form="text", reason="telemetry")
        for name, form in names.PHYSICAL_FREE.items()
    }
    return {
        "device": Free(form="text", reason="telemetry"),
        "model_repository": plan.model_repository,
        "model_revision": plan.model_revision,
        "physical": {
            **physical,
            names.DEVICE_TOTAL: memories.get("accelerator-vram"),
            names.DEVICE_UUID: units[0].device_uuid if units else None,
            "system_ram_bytes": memories.get("system-ram"),
        },
        "resources": to_document(plan.resources),
    }

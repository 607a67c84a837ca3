"""What a planned materialization must look like once realized, and which status its row deserves.

Computed from the plan and from observed columns; a producer's own ``status`` is never an input.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from harness.plan.records import Materialization, Plan
from harness.reconcile.findings import Row

REALIZED = "PLANNED_AND_REALIZED"
RELEASED = "TRANSIENT_RELEASED_AS_PLANNED"
NOT_AUTHORIZED = "TRANSIENT_RELEASE_NOT_AUTHORIZED"
NOT_REALIZED = "OPTIONAL_NOT_REALIZED"
REALIZATION_FAILED = "REALIZATION_FAILED"
RELEASE_INCOMPLETE = "RELEASE_INCOMPLETE"

LIVE, RELEASED_LIFECYCLE, NOT_THERE = "live", "released", "absent"


def is_wanted(intent: Materialization) -> bool:
    """Whether a run of the plan realizes this materialization."""
    return intent.requirement == "required" or intent.realize is True


def is_transient(intent: Materialization) -> bool:
    """Whether the materialization must be gone before execution."""
    return intent.persistence == "transient"


def passing_status(intent: Materialization) -> str:
    """The status that a faithful run ends with."""
    if not is_wanted(intent):
        return NOT_REALIZED
    return RELEASED if is_transient(intent) else REALIZED


def passing_columns(intent: Materialization) -> dict[str, Any]:
    """Columns that a faithful run's row must have, whatever the machine."""
    identity: dict[str, Any] = {
        "logical_state_id": intent.logical_state_id,
        "representation": intent.representation,
        "memory_resource_id": intent.memory_resource_id,
    }
    size = intent.expected_bytes
    if not is_wanted(intent):
        identity = dict.fromkeys(identity)
        return identity | {"lifecycle": NOT_THERE} | _bytes(requested=0)
    if is_transient(intent):
        released = _bytes(requested=0, before=size, after=0, released=size)
        gone = {"lifecycle": RELEASED_LIFECYCLE, "allocated_bytes": 0}
        return identity | gone | released
    return identity | {"lifecycle": LIVE} | _bytes(requested=size)


def _bytes(
    *,
    requested: int,
    before: int | None = None,
    after: int | None = None,
    released: int | None = None,
) -> dict[str, int | None]:
    return {
        "requested_bytes": requested,
        "bytes_before_release": before,
        "bytes_after_release": after,
        "released_bytes": released,
    }


def has_identity(intent: Materialization, row: Row) -> bool:
    """Whether the row's actual state, representation and memory are the planned ones."""
    return bool(
        row["logical_state_id"] == intent.logical_state_id
        and row["representation"] == intent.representation
        and row["memory_resource_id"] == intent.memory_resource_id
    )


def recomputed_status(intent: Materialization, row: Row) -> str:
    """Judge one row of the ``materializations`` table by its observed columns alone."""
    lifecycle = row["lifecycle"]
    if not is_wanted(intent):
        is_nothing = lifecycle == NOT_THERE and row["requested_bytes"] == 0
        return NOT_REALIZED if is_nothing else REALIZATION_FAILED
    if not is_transient(intent):
        as_planned = (
            lifecycle == LIVE
            and has_identity(intent, row)
            and row["requested_bytes"] == intent.expected_bytes
        )
        return REALIZED if as_planned else REALIZATION_FAILED
    if lifecycle == LIVE and row["bytes_before_release"] is None:
        return NOT_AUTHORIZED
    if lifecycle not in (LIVE, RELEASED_LIFECYCLE) or not has_identity(intent, row):
        return REALIZATION_FAILED
    if row["bytes_before_release"] != intent.expected_bytes:
        return REALIZATION_FAILED
    is_gone = lifecycle == RELEASED_LIFECYCLE and row["bytes_after_release"] == 0
    return RELEASED if is_gone else RELEASE_INCOMPLETE


def residencies(plan: Plan) -> dict[str, list[Materialization]]:
    """Required, persistent materializations by the state they hold."""
    found: dict[str, list[Materialization]] = {}
    for intent in plan.materializations:
        if intent.requirement == "required" and intent.persistence == "persistent":
            found.setdefault(intent.logical_state_id, []).append(intent)
    return found


def qualifying_ids(
    staying: Iterable[Materialization], staging: Materialization, rows: Mapping[str, Row]
) -> list[str]:
    """Ids of the copies that let ``staging`` go, sorted: another required persistent one, live.

    Args:
        staying: The :func:`residencies` of its state.
        staging: A transient materialization.
        rows: Observed rows by materialization id.
    """
    return sorted(
        other.id
        for other in staying
        if other.id != staging.id
        and other.id in rows
        and recomputed_status(other, rows[other.id]) == REALIZED
    )


def planned_bytes(intents: Iterable[Materialization]) -> dict[str, int]:
    """Sum of expected bytes per memory."""
    totals: dict[str, int] = {}
    for intent in intents:
        memory = intent.memory_resource_id
        totals[memory] = totals.get(memory, 0) + intent.expected_bytes
    return totals

"""What one realized materialization is measured to be, beside what was intended.

Bytes, memory and representation are read from the arena that exists, never from the intent. The
logical state and the lineage are what the owner says of itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.plan.layout import Form, TensorSpec
from harness.plan.records import Materialization
from harness.realize.adapter import Realized
from harness.state.arena import Arena, Memory

REALIZED = "PLANNED_AND_REALIZED"
FAILED = "REALIZATION_FAILED"
NOT_REALIZED = "OPTIONAL_NOT_REALIZED"
RELEASED = "TRANSIENT_RELEASED_AS_PLANNED"
NOT_AUTHORIZED = "TRANSIENT_RELEASE_NOT_AUTHORIZED"
RELEASE_INCOMPLETE = "RELEASE_INCOMPLETE"

UNIDENTIFIED = "unidentified"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What was measured of one materialization; ``None`` where nothing is there."""

    logical_state_id: str | None
    representation: str | None
    memory_resource_id: str | None
    requested_bytes: int
    allocated_bytes: int
    is_live: bool


@dataclass(frozen=True, kw_only=True)
class Record:
    """One materialization's row as it grows: intent, observation, release and status."""

    intent: Materialization
    status: str
    lifecycle: str
    observation: Observation
    bytes_before_release: int | None = None
    bytes_after_release: int | None = None
    qualifying_ids: tuple[str, ...] = ()
    detail: str | None = None

    @property
    def released_bytes(self) -> int | None:
        """Measured before minus measured after."""
        if self.bytes_before_release is None or self.bytes_after_release is None:
            return None
        return self.bytes_before_release - self.bytes_after_release

    def row(self) -> dict[str, object]:
        """The row of the ``materializations`` table."""
        return {
            "id": self.intent.id,
            "status": self.status,
            "lifecycle": self.lifecycle,
            "logical_state_id": self.observation.logical_state_id,
            "representation": self.observation.representation,
            "memory_resource_id": self.observation.memory_resource_id,
            "requested_bytes": self.observation.requested_bytes,
            "allocated_bytes": self.observation.allocated_bytes,
            "bytes_before_release": self.bytes_before_release,
            "bytes_after_release": self.bytes_after_release,
            "released_bytes": self.released_bytes,
            "qualifying_ids": list(self.qualifying_ids),
            "detail": self.detail,
        }


ABSENT = Observation(
    logical_state_id=None,
    representation=None,
    memory_resource_id=None,
    requested_bytes=0,
    allocated_bytes=0,
    is_live=False,
)


def locate(arena: Arena, memories: Mapping[str, Memory]) -> str | None:
    """Plan id of the memory that holds the arena, by looking for it there."""
    for resource_id, memory in memories.items():
        if any(held is arena for held in memory.arenas):
            return resource_id
    return None


def identify(
    arena: Arena, state_id: str, intended: str, known: Mapping[Form, Sequence[TensorSpec]]
) -> str:
    """The form of the state whose tensors (names, dtypes, shapes) the arena really has.

    Two representations may have the same tensors (state and its snapshot); the intended one wins
    among equals, since nothing in memory can tell them apart.
    """
    actual = {
        (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in arena.tensors.items()
    }
    matching = [
        form
        for (owner, form), specs in known.items()
        if owner == state_id
        and {(spec.name, spec.dtype, tuple(spec.shape)) for spec in specs} == actual
    ]
    if intended in matching:
        return intended
    return matching[0] if matching else UNIDENTIFIED


def observe(
    intent: Materialization,
    realized: Realized | None,
    memories: Mapping[str, Memory],
    known: Mapping[Form, Sequence[TensorSpec]],
) -> Observation:
    """Measure one materialization as it is now."""
    if realized is None or not realized.arena.is_mapped:
        return ABSENT
    arena = realized.arena
    return Observation(
        logical_state_id=realized.logical_state_id,
        representation=identify(arena, realized.logical_state_id, intent.representation, known),
        memory_resource_id=locate(arena, memories),
        requested_bytes=arena.requested_bytes,
        allocated_bytes=arena.allocated_bytes,
        is_live=True,
    )


def differences(intent: Materialization, observation: Observation) -> list[str]:
    """Every way in which an observation is not what was intended."""
    pairs = (
        ("logical state", intent.logical_state_id, observation.logical_state_id),
        ("representation", intent.representation, observation.representation),
        ("memory", intent.memory_resource_id, observation.memory_resource_id),
        ("bytes", intent.expected_bytes, observation.requested_bytes),
    )
    return [
        f"{name}: expected {expected}, got {got}"
        for name, expected, got in pairs
        if expected != got
    ]


def qualifies(staging: Record, other: Record) -> bool:
    """Whether ``other``, a required and live final copy as planned, lets ``staging`` go."""
    intent = other.intent
    return (
        intent.id != staging.intent.id
        and intent.logical_state_id == staging.intent.logical_state_id
        and intent.requirement == "required"
        and intent.persistence == "persistent"
        and other.status == REALIZED
        and other.lifecycle == "live"
        and not differences(intent, other.observation)
    )


def qualifying_ids(staging: Record, records: Iterable[Record]) -> tuple[str, ...]:
    """Ids of the records that let ``staging`` go, sorted; empty when it must stay."""
    if staging.status != REALIZED or differences(staging.intent, staging.observation):
        return ()
    return tuple(sorted(record.intent.id for record in records if qualifies(staging, record)))

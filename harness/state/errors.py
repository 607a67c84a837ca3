"""Errors of a state's owner: rows that cannot be held, positions that cannot be read."""

from harness.errors import InvalidInputError, ResourceError


class GapError(InvalidInputError):
    """Rows would start beyond the frontier."""

    kind = "gap"


class CapacityError(ResourceError):
    """Rows would end beyond the capacity, or too few slots are free."""

    kind = "capacity"


class UnmappedError(InvalidInputError):
    """A position that has no slot: never covered, or evicted since."""

    kind = "unmapped"


class DamagedStateError(InvalidInputError):
    """Declared tensors that contradict themselves, each other, or their owner."""

    kind = "damaged"

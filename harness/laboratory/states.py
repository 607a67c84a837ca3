"""The states of a record, and who may set which.

    valid         audited and passed; a replay under its key reproduced it, or none was made yet
    stale         a replay by other code did not reproduce it
    inapplicable  the last replay ran under another key, so that its numbers say nothing there
    degraded      a replay under its key, by the same code, did not reproduce it
    suspended     a person doubts it; only a person lifts this
    invalid       its audit fails, or a person withdrew it; final

The auditor's verdict is the ground: a record that was not audited has no state, and a failing
verdict makes it invalid whatever was set. Pure functions.
"""

from collections.abc import Mapping, Sequence

from harness.errors import InvalidInputError

VALID, STALE, INAPPLICABLE = "valid", "stale", "inapplicable"
DEGRADED, SUSPENDED, INVALID = "degraded", "suspended", "invalid"
STATES = (VALID, STALE, INAPPLICABLE, DEGRADED, SUSPENDED, INVALID)
NOT_AUDITED = "not_audited"
AUDITOR, REPLAY, PERSON = "auditor", "replay", "person"

_RUNNING = (VALID, STALE, INAPPLICABLE, DEGRADED)
MAY_SET: Mapping[str, Mapping[str, frozenset[str]]] = {
    AUDITOR: {},
    REPLAY: dict.fromkeys(_RUNNING, frozenset(_RUNNING)),
    PERSON: {
        **dict.fromkeys(_RUNNING, frozenset({SUSPENDED, INVALID})),
        SUSPENDED: frozenset({VALID, INVALID}),
    },
}
"""By who sets it and the state before: the states that may follow. The auditor sets by verdict."""


def ground(verdict: str | None) -> str:
    """The state that the newest verdict gives."""
    if verdict is None or verdict == "not_evaluated":
        return NOT_AUDITED
    return VALID if verdict == "passed" else INVALID


def require_allowed(actor: str, before: str, after: str) -> None:
    """Refuse a state that this actor may not set now.

    Raises:
        InvalidInputError: Saying what may be set.
    """
    allowed = MAY_SET.get(actor, {}).get(before, frozenset())
    if after not in allowed:
        raise InvalidInputError(
            f"{actor} may not set a record that is {before} to {after}",
            expected=", ".join(sorted(allowed)) or "nothing",
            got=after,
        )


def current(verdict: str | None, history: Sequence[tuple[str, str]]) -> str:
    """The state after a history of (actor, state), oldest first.

    Raises:
        InvalidInputError: When an entry was not allowed.
    """
    state = ground(verdict)
    for actor, after in history:
        if state in (NOT_AUDITED, INVALID) and verdict != "passed":
            # A later verdict took the ground away; what was set before it counts no more.
            return state
        require_allowed(actor, state, after)
        state = after
    return state

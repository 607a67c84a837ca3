"""The published R1 system's names, as data: what its adapter could realize and execute.

``checkpoint-native-host`` is a misnomer there: its bytes are those of the resident bank layout.
"""

from collections.abc import Mapping
from dataclasses import dataclass

REPRESENTATIONS: Mapping[str, frozenset[str]] = {
    "state.block-a.non-routed": frozenset({"freetoken-native-device"}),
    "state.block-a.routed": frozenset({"checkpoint-native-host", "freetoken-nvfp4-slot-banks"}),
    "state.block-a.mutable-runtime": frozenset({"freetoken-block-runtime-device"}),
    "state.block-a.replay-baseline": frozenset({"freetoken-runtime-snapshot-device"}),
}
"""Logical state id -> representations that its adapter could realize."""

STRATEGY_UNITS = frozenset({"qwen-block-a.same-backend-resident-decode-v1"})
"""Executions that its adapter could run."""


@dataclass(frozen=True, kw_only=True)
class NamedSupport:
    """What an adapter supports, as plain names."""

    representations: Mapping[str, frozenset[str]]
    strategy_units: frozenset[str]
    acceptance_checks: tuple[str, ...] = ()

    def supports_representation(self, logical_state_id: str, representation: str) -> bool:
        """Whether the names list the representation for the state."""
        return representation in self.representations.get(logical_state_id, frozenset())


PUBLISHED_SUPPORT = NamedSupport(representations=REPRESENTATIONS, strategy_units=STRATEGY_UNITS)

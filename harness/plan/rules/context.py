"""What every rule looks at: the plan, its indexes, and what was handed in beside it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from harness.plan.environment import Environment
from harness.plan.format import NATIVE_SCHEMA
from harness.plan.manifest import ManifestEntry
from harness.plan.records import (
    BackingSource,
    ComputeUnit,
    Finding,
    Link,
    Materialization,
    MemoryResource,
    Plan,
    StateUnit,
)


class AdapterSupport(Protocol):
    """What an adapter can realize and execute; every adapter's layout is one."""

    @property
    def strategy_units(self) -> AbstractSet[str]:
        """Executions the adapter can run."""

    @property
    def acceptance_checks(self) -> tuple[str, ...]:
        """Checks, beyond those of every plan, that decide the verdict of its plans."""

    def supports_representation(self, logical_state_id: str, representation: str) -> bool:
        """Whether the adapter can realize the state in the representation."""


@dataclass(frozen=True, kw_only=True)
class RuleContext:
    """One plan under check. Where ids repeat, the first one is meant."""

    plan: Plan
    environment: Environment | None
    support: AdapterSupport | None
    manifest: Sequence[ManifestEntry] | None

    @property
    def is_native(self) -> bool:
        """Whether the plan is of the native schema."""
        return self.plan.schema == NATIVE_SCHEMA

    @cached_property
    def states(self) -> dict[str, StateUnit]:
        """States by id."""
        return {state.id: state for state in reversed(self.plan.logical_state_units)}

    @cached_property
    def materializations(self) -> dict[str, Materialization]:
        """Materializations by id."""
        return {item.id: item for item in reversed(self.plan.materializations)}

    @cached_property
    def residencies(self) -> dict[str, list[Materialization]]:
        """Required, persistent materializations by the state they hold."""
        found: dict[str, list[Materialization]] = {}
        for item in self.plan.materializations:
            if item.requirement == "required" and item.persistence == "persistent":
                found.setdefault(item.logical_state_id, []).append(item)
        return found

    @cached_property
    def memories(self) -> dict[str, MemoryResource]:
        """Memories by id."""
        nodes = self.plan.resources.nodes
        return {memory.id: memory for node in nodes for memory in node.memory_resources}

    @cached_property
    def units(self) -> dict[str, ComputeUnit]:
        """Compute units by id."""
        nodes = self.plan.resources.nodes
        return {unit.id: unit for node in nodes for unit in node.compute_units}

    @cached_property
    def backing_sources(self) -> dict[str, BackingSource]:
        """Backing sources by id."""
        return {source.id: source for source in self.plan.resources.backing_sources}

    @cached_property
    def links(self) -> dict[str, Link]:
        """Links by id."""
        return {link.id: link for link in self.plan.resources.links}

    def is_realized(self, item: Materialization) -> bool:
        """Whether a faithful run realizes the materialization."""
        return item.requirement == "required" or item.realize is True


def repeated(ids: Iterable[str]) -> list[tuple[int, str]]:
    """Positions and values of ids that stood earlier in the sequence already."""
    listed = list(ids)
    counts = Counter(listed)
    if len(counts) == len(listed):
        return []
    seen: set[str] = set()
    again = []
    for index, name in enumerate(listed):
        if name in seen:
            again.append((index, name))
        seen.add(name)
    return again


def duplicate_findings(path: str, rule: str, ids: Iterable[str], field: str) -> Iterator[Finding]:
    """A finding for each item of an array whose id stood in it already."""
    for index, name in repeated(ids):
        yield Finding(path=f"{path}[{index}]{field}", rule=rule, message=f"duplicate {name!r}")

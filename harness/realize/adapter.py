"""The protocol between the generic realizer and a model family's adapter.

The realizer decides order, release and status; the adapter knows what tensors mean. Nothing here
names a model family.

Shape legend: R rows of one step, H hidden size, V vocabulary size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from harness.plan.layout import AdapterLayout, CensusEntry, LayoutRequest
from harness.plan.records import Execution, Materialization
from harness.state.arena import Arena, Memory
from harness.state.ownership import Ownership
from harness.state.recording import HostRecording, MakeRecording
from harness.state.transfer import HostTransfer, Transfer
from harness.team import Team

Tap = Callable[[int, torch.Tensor], None]
"""Called with a boundary's index and tensor; ``None`` when nothing is captured."""


class TensorSource(Protocol):
    """Bounded access to the checkpoint's tensors; each key is fetched exactly once."""

    def begin(self, key: str, target: torch.Tensor) -> Callable[[], None]:
        """Begin to read one whole tensor's bytes into ``target`` (same dtype, shape; contiguous).

        Returns:
            What waits until they are there and checked, and raises what went wrong. Several
            tensors may be under way.
        """


@dataclass(frozen=True, kw_only=True)
class AdapterContext:
    """What an adapter may use: no plan, no store, no clock."""

    request: LayoutRequest
    memories: Mapping[str, Memory]
    """By plan memory id."""
    census: Sequence[CensusEntry] = ()
    """What the checkpoint's tensors are on disk; needed to stage or read them."""
    transfer: Transfer = field(default_factory=HostTransfer)
    """How rows come from a window in host memory to where they stay."""
    record: MakeRecording = HostRecording
    """How a plan's recorded decode steps are recorded."""
    team: Team = field(default_factory=Team)
    """Threads that may work beside the one that realizes."""


@dataclass(frozen=True, kw_only=True)
class Realized:
    """What an adapter hands back for one materialization it realized."""

    arena: Arena
    logical_state_id: str
    lineage: str | None = None
    """Minted by the owner of a mutable state when it is realized; else ``None``."""


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """Outputs of one executed step."""

    plane: torch.Tensor
    """[R, H]: the last layer's residual output (compute dtype)."""
    logits: torch.Tensor | None
    """[V] float32 of the last row, or ``None`` when not asked for or there is no head."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The token chosen from one row of logits, and by how much its logit leads."""

    token: int
    margin: float
    """Top logit minus the second; 0 for equals."""


class Executor(Protocol):
    """One activated execution. Positions run from 0; entries ensure state before they compute."""

    @property
    def strategy_unit(self) -> str:
        """Which execution this is, as the adapter names it."""

    def conditions(self) -> Mapping[str, str]:
        """``dtype``, ``kernel_set`` and ``positions``, of the tensors and ops in use."""

    def step(
        self,
        token_ids: Sequence[int],
        start_position: int,
        *,
        want_logits: bool,
        tap: Tap | None = None,
    ) -> StepOutput:
        """Run one step over the rows at ``start_position`` and advance the mutable state."""

    def choose(self, logits: torch.Tensor) -> Choice:
        """Greedy choice from ``logits`` [V]: the largest, the lowest index among equals."""

    def reset(self) -> None:
        """Return the mutable state to empty: zero tensors, frontier 0."""

    def declared_state(self) -> Mapping[str, torch.Tensor]:
        """Every tensor of the mutable state, by name: what reset, snapshot and digests cover."""

    def frontier(self) -> int:
        """Number of positions the mutable state holds."""

    def restore_frontier(self, positions: int) -> None:
        """Set the frontier after the declared tensors were restored bytewise."""

    def ownership(self) -> Sequence[Ownership]:
        """What each pool of the mutable state owns now; empty where there is none.

        Counted in the declared tensors, not in counters.
        """

    def observed_authorities(self) -> Mapping[str, str]:
        """Logical state id -> lineage, as the owning objects hold it now."""


class Adapter(Protocol):
    """One model family's realization of planned state."""

    @property
    def layout(self) -> AdapterLayout:
        """The family's torch-free layout."""

    def begin(self, context: AdapterContext) -> None:
        """Remember the context; allocate nothing."""

    def allocate(self, intent: Materialization) -> Realized:
        """Map the arena of one materialization (staging or persistent), zeroed."""

    def populate(self, intent: Materialization, source: TensorSource) -> None:
        """Fill an allocated materialization, from staging, source, or nothing.

        Staging comes first; then all persistent arenas are allocated, and then filled, both in
        plan order. A whole staging copy is filled by its own call; a streaming window is used
        while its residency is filled. Mutable state, snapshots and reference outputs stay zeroed.
        """

    def unpopulated(self, intent: Materialization) -> Sequence[str]:
        """Names of slots of a final residency that hold no data yet (the adapter's own check)."""

    def release(self, intent: Materialization) -> None:
        """Drop the adapter's own references to a staging materialization's tensors."""

    def activate(self, execution: Execution) -> Executor:
        """Bind resident tensors and mutable state into something that runs."""

"""The owner of one mutable state: its declared tensors, its frontier and its lineage.

Positions [0, frontier) are held, contiguous. An entry covers its rows *before* it computes, so a
gap or an exhausted capacity is found while nothing has been written yet. A :class:`Session` holds
tensors whose positions lie where they are counted; a :class:`PagedSession` also owns the mapping of
its positions to the slots of a pool. Knows no model.
"""

from collections.abc import Mapping

import torch

from harness.errors import InvalidInputError
from harness.state.errors import CapacityError, DamagedStateError, GapError
from harness.state.hybrid import HybridPool
from harness.state.ownership import Ownership

__all__ = ["CapacityError", "GapError", "PagedSession", "Session"]


class Session:
    """Owns one mutable state from its realization on."""

    def __init__(
        self,
        *,
        logical_state_id: str,
        epoch: int,
        tensors: Mapping[str, torch.Tensor],
        capacity_positions: int,
    ) -> None:
        """Take ownership of ``tensors``, the complete mutable state by name.

        ``epoch`` counts the realizations of the state by its owner's maker, from 1.
        """
        self.logical_state_id = logical_state_id
        self.lineage = f"{logical_state_id}@epoch-{epoch}"
        self.tensors = tensors
        self.capacity_positions = capacity_positions
        self._frontier = 0

    @property
    def frontier(self) -> int:
        """Number of positions held."""
        return self._frontier

    def cover(self, start_position: int, num_rows: int) -> None:
        """Ensure that positions [0, start + rows) are held; an owned range again is a no-op.

        Raises:
            GapError: When the rows start beyond the frontier.
            CapacityError: When they end beyond the capacity.
            UnmappedError: When new rows come with one that reads an evicted position. The frontier
                moves in none of these cases.
        """
        if num_rows < 1 or start_position < 0:
            raise InvalidInputError(
                "rows are not valid",
                expected="one row or more, at a position of 0 or more",
                got=f"{num_rows} rows at {start_position}",
            )
        if start_position > self._frontier:
            raise GapError(
                f"gap in {self.logical_state_id}",
                expected=f"rows that start at or before the frontier {self._frontier}",
                got=f"start {start_position}",
                hint="run the positions in between first",
            )
        end = start_position + num_rows
        if end > self.capacity_positions:
            raise CapacityError(
                f"capacity of {self.logical_state_id} exceeded",
                expected=f"at most {self.capacity_positions} positions",
                got=f"rows [{start_position}, {end})",
                hint="derive the plan with more positions",
            )
        if end > self._frontier:
            self._require_ready(start_position)
            self._acquire(self._frontier, end)
            self._frontier = end

    def end_step(self) -> None:
        """Let go what no later row can read, after a step's last read; here, nothing."""

    def reset(self) -> None:
        """Zero every declared tensor, then hold nothing."""
        for tensor in self.tensors.values():
            tensor.zero_()
        self._frontier = 0

    def restore(self, positions: int) -> None:
        """Hold [0, positions) after the declared tensors were restored bytewise.

        Raises:
            InvalidInputError: When the state cannot hold so many positions.
            DamagedStateError: When the tensors say anything else than that exactly these are
                held. Nothing is held then until a reset, or another restore.
        """
        if not 0 <= positions <= self.capacity_positions:
            raise InvalidInputError(
                f"{self.logical_state_id} cannot hold these positions",
                expected=f"0 to {self.capacity_positions}",
                got=str(positions),
            )
        self._verify(positions)
        self._frontier = positions

    def ownership(self) -> tuple[Ownership, ...]:
        """What each pool of the state owns; nothing here is a pool."""
        return ()

    def _require_ready(self, start_position: int) -> None:
        """Check that what rows from a position on read is held and sound; here, it always is."""

    def _acquire(self, begin_position: int, end_position: int) -> None:
        """Take what the positions from the frontier on need, all or nothing; here, nothing."""

    def _verify(self, positions: int) -> None:
        """Check that the restored tensors hold exactly [0, positions); here they always do."""


class PagedSession(Session):
    """Owns the pages of one pool: the only one that has positions mapped, and evicted."""

    def __init__(self, *, logical_state_id: str, epoch: int, pool: HybridPool) -> None:
        """Take ownership of ``pool`` and of its declared tensors."""
        super().__init__(
            logical_state_id=logical_state_id,
            epoch=epoch,
            tensors=pool.tensors,
            capacity_positions=pool.geometry.max_positions,
        )
        self.pool = pool
        self._is_damaged = False

    def end_step(self) -> None:
        """Evict what the pool's policy lets go."""
        self.pool.evict_positions(self._frontier)

    def reset(self) -> None:
        """Zero every declared tensor, *then* rebuild the mapping: a zeroed free list is a lie."""
        super().reset()
        self.pool.rebuild()
        self._is_damaged = False

    def ownership(self) -> tuple[Ownership, ...]:
        """What each pool owns, counted in the declared tensors against this frontier."""
        return self.pool.ownership(self._frontier)

    def _require_ready(self, start_position: int) -> None:
        if self._is_damaged:
            raise DamagedStateError(
                f"{self.logical_state_id} is damaged",
                expected="tensors that a restore has found sound",
                hint="reset it, or restore it from a snapshot of its own",
            )
        # Rows that fail after they were covered would leave positions held and never written.
        self.pool.require_window(start_position)

    def _acquire(self, begin_position: int, end_position: int) -> None:
        self.pool.map_positions(begin_position, end_position)

    def _verify(self, positions: int) -> None:
        # Until a reset or a sound restore nothing is held, so nothing can be covered.
        self._is_damaged, self._frontier = True, 0
        self.pool.read_back()
        faults = [fault for report in self.pool.ownership(positions) for fault in report.faults()]
        faults += self.pool.eviction_faults(positions)
        if faults:
            raise DamagedStateError(
                f"the restored tensors of {self.logical_state_id} do not hold these positions",
                expected=f"positions [0, {positions}), each mapped once, and no others",
                got="; ".join(faults),
            )
        self._is_damaged = False

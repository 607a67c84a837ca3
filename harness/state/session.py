"""The owner of one mutable state: its declared tensors, its frontier and its lineage.

Positions [0, frontier) are held, contiguous. An entry covers its rows *before* it computes, so a
gap or an exhausted capacity is found while nothing has been written yet. Knows no model.
"""

from collections.abc import Mapping

import torch

from harness.errors import InvalidInputError, ResourceError


class GapError(InvalidInputError):
    """Rows would start beyond the frontier."""

    kind = "gap"


class CapacityError(ResourceError):
    """Rows would end beyond the capacity."""

    kind = "capacity"


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
            CapacityError: When they end beyond the capacity. The frontier does not move.
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
        self._frontier = max(self._frontier, end)

    def reset(self) -> None:
        """Zero every declared tensor, then hold nothing."""
        for tensor in self.tensors.values():
            tensor.zero_()
        self._frontier = 0

    def restore(self, positions: int) -> None:
        """Hold [0, positions) after the declared tensors were restored bytewise.

        Raises:
            InvalidInputError: When the state cannot hold so many positions.
        """
        if not 0 <= positions <= self.capacity_positions:
            raise InvalidInputError(
                f"{self.logical_state_id} cannot hold these positions",
                expected=f"0 to {self.capacity_positions}",
                got=str(positions),
            )
        self._frontier = positions

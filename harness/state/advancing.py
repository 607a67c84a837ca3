"""The owner of a state that only advances: what its rows did to it cannot be done again.

Knows no model; what a state's tensors mean is the business of whoever runs over them.
"""

from harness.errors import InvalidInputError
from harness.state.session import Session


class AdvancingSession(Session):
    """A session whose rows begin exactly at its frontier.

    Rows of a cache may be computed again, and leave the same keys. A recurrence that has taken a
    row in holds it for good: the way back is a reset, or a restored snapshot.
    """

    def cover(self, start_position: int, num_rows: int) -> None:
        """Ensure that positions [0, start + rows) are held, the rows being new ones.

        Raises:
            InvalidInputError: When the rows start before the frontier.
            GapError: When they start beyond it.
            CapacityError: When they end beyond the capacity. The frontier does not move.
        """
        if 0 <= start_position < self.frontier:
            raise InvalidInputError(
                f"{self.logical_state_id} cannot go back",
                expected=f"rows that start at the frontier {self.frontier}",
                got=f"start {start_position}",
                hint="reset it, or restore a snapshot that holds fewer positions",
            )
        super().cover(start_position, num_rows)

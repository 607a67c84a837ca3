"""What attention prepares once per step and layer kind. Knows positions, not tensors of a layer.

0          first_position    first_read        start          start + rows
|...not needed...|...not read...|...read by some row...|...this step...|
                 [ k, v: num_positions rows                          ]
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionContext:
    """The rows of one step and the positions they read."""

    num_rows: int
    start_position: int
    """Position of the first row."""
    first_position: int
    """Position of the first key that is handed over; earlier ones may be gone."""
    window: int | None
    """A row at position p reads [p - window + 1, p]; ``None``: [0, p]."""
    mask: torch.Tensor | None = None
    """Added to the scores, [rows, positions from the first that is read]; where a set uses one."""
    position: torch.Tensor | None = None
    """[1] int64: position of the first row, in a set that reads it where the rows are. It may
    change between uses; ``start_position`` is then the last that it may be."""

    @property
    def num_positions(self) -> int:
        """Number of keys that are handed over."""
        return self.start_position + self.num_rows - self.first_position

    def read_by(self, row: int) -> tuple[int, int]:
        """Half-open range of the handed-over keys that ``row`` reads."""
        position = self.start_position + row
        first = 0 if self.window is None else max(0, position - self.window + 1)
        return first - self.first_position, position + 1 - self.first_position


def check_positions(
    num_rows: int, start_position: int, first_position: int, window: int | None
) -> None:
    """Raise a ValueError unless every row's positions are among those handed over."""
    if num_rows < 1 or start_position < 0:
        raise ValueError(
            "attention: expected one row or more at a position of 0 or more, got "
            f"{num_rows} at {start_position}"
        )
    if window is not None and window < 1:
        raise ValueError(f"attention: expected a window of 1 or more, got {window}")
    needed = 0 if window is None else max(0, start_position - window + 1)
    if not 0 <= first_position <= needed:
        raise ValueError(
            f"attention: expected keys from position {needed} or before, as the row at "
            f"{start_position} reads them, got keys from {first_position}"
        )


def prepare(
    num_rows: int,
    start_position: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    first_position: int = 0,
    window: int | None = None,
) -> AttentionContext:
    """A context without a mask, for sets that need none."""
    check_positions(num_rows, start_position, first_position, window)
    return AttentionContext(
        num_rows=num_rows,
        start_position=start_position,
        first_position=first_position,
        window=window,
    )

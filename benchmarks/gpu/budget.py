"""The time of a check: what is optional is left out when it runs short. Knows nothing else."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


class OutOfTimeError(Exception):
    """No time is left for something; it was not begun."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Seconds that a check may take in all, counted from when this was made."""

    seconds: float
    clock: Callable[[], float] = time.perf_counter
    began: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "began", self.clock())

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return self.clock() - self.began

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 where it was overrun."""
        return self.seconds - self.spent

    def require(self, seconds: float) -> float:
        """The seconds that are left.

        Raises:
            OutOfTimeError: When they are fewer than these.
        """
        left = self.left
        if left < seconds:
            raise OutOfTimeError(f"{max(left, 0):.0f} s were left")
        return left

    def keeps(self, share: float) -> bool:
        """Whether more than a share of all seconds is left, which what comes later needs."""
        return self.left > share * self.seconds

"""Work that is recorded once and replayed. On a GPU a graph of launches; on the host, the work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Recording(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Do it, over the same addresses."""


MakeRecording = Callable[[Callable[[], None]], Recording]
"""Records work; recording it does not do it."""


@dataclass(frozen=True)
class HostRecording:
    """The host has no launches to record: the work itself is kept, and done at each replay."""

    work: Callable[[], None]

    def replay(self) -> None:
        """Do the work."""
        self.work()

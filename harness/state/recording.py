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


class Rehearsed:
    """Work that is done itself the first time, then recorded, and from then on replayed.

    To load code, or to find room, is refused while a GPU records: work has to run once before.
    """

    def __init__(self, work: Callable[[], None], record: MakeRecording) -> None:
        """Args: work: to be recorded; record: takes the recording."""
        self._work = work
        self._record = record
        self._num_done = 0
        self._recording: Recording | None = None

    def replay(self) -> None:
        """Do it."""
        self._num_done += 1
        if self._num_done == 1:
            self._work()
            return
        if self._recording is None:
            self._recording = self._record(self._work)
        self._recording.replay()


def rehearsing(record: MakeRecording) -> MakeRecording:
    """As ``record``, but that each work runs once by itself before it is recorded."""
    return lambda work: Rehearsed(work, record)

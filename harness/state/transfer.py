"""How rows come from a host buffer to where they stay, one buffer after another.

A buffer that copies are still read from must not be overwritten: whoever fills it again first
waits for what was sent from it. Knows no tensors.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from harness.state.driver import Driver


class Transfer(Protocol):
    """Copies from a ring of host buffers."""

    @property
    def num_buffers(self) -> int:
        """Into how many buffers a window is cut."""

    def wait(self, buffer: int) -> None:
        """Wait until all that was sent from a buffer has arrived."""

    def sending(self, buffer: int) -> AbstractContextManager[None]:
        """Copies from a buffer are started inside, and may still run afterwards."""

    def finish(self) -> None:
        """Let all that follows see what was sent."""


class HostTransfer:
    """On the host a copy has ended when it returns."""

    num_buffers = 1

    def wait(self, buffer: int) -> None:
        """Nothing is under way."""

    def sending(self, buffer: int) -> AbstractContextManager[None]:
        """Nothing to prepare."""
        del buffer
        return nullcontext()

    def finish(self) -> None:
        """Nothing is under way."""


class DeviceTransfer:
    """Copies run beside the reading and hashing of what comes next."""

    num_buffers = 2

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._arrivals: dict[int, Callable[[], None]] = {}

    def wait(self, buffer: int) -> None:
        """Wait on the host."""
        arrival = self._arrivals.pop(buffer, None)
        if arrival is not None:
            arrival()

    @contextmanager
    def sending(self, buffer: int) -> Iterator[None]:
        """Work on the driver's side stream, marked at its end."""
        with self._driver.sending():
            yield
        self._arrivals[buffer] = self._driver.sent()

    def finish(self) -> None:
        """Wait for every buffer, and let the device's own later work wait too."""
        for buffer in sorted(self._arrivals):
            self.wait(buffer)
        self._driver.join()

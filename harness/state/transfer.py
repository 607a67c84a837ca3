"""How rows come from host memory to where they stay, one tensor after another.

Bytes that copies are still read from must not be overwritten: whoever reads over them first waits
for what was sent from there. Knows no tensors, only their names.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from harness.state.driver import Driver


class Transfer(Protocol):
    """Copies out of host memory that is filled again and again."""

    def wait(self, key: str) -> None:
        """Wait until what was sent under this name has arrived."""

    def sending(self, key: str) -> AbstractContextManager[None]:
        """Copies are started inside, and may still run afterwards."""

    def finish(self) -> None:
        """Let all that follows see what was sent."""


class HostTransfer:
    """On the host a copy has ended when it returns."""

    def wait(self, key: str) -> None:
        """Nothing is under way."""

    def sending(self, key: str) -> AbstractContextManager[None]:
        """Nothing to prepare."""
        del key
        return nullcontext()

    def finish(self) -> None:
        """Nothing is under way."""


class DeviceTransfer:
    """Copies run beside the reading and hashing of what comes next."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._arrivals: dict[str, Callable[[], None]] = {}

    def wait(self, key: str) -> None:
        """Wait on the host."""
        arrival = self._arrivals.pop(key, None)
        if arrival is not None:
            arrival()

    @contextmanager
    def sending(self, key: str) -> Iterator[None]:
        """Work on the driver's side stream, marked at its end."""
        with self._driver.sending():
            yield
        self._arrivals[key] = self._driver.sent()

    def finish(self) -> None:
        """Wait for all, and let the device's own later work wait too."""
        for key in tuple(self._arrivals):
            self.wait(key)
        self._driver.join()

"""The producer's end of the witness: asks for readings of its own process.

Brings the heap to rest before every request, so that no caller can forget it. Knows nothing of
what the witness makes of its readings.
"""

import os
import resource
import socket
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from harness.errors import HarnessError, InvalidInputError, NotEvaluableError
from harness.measure.readings import (
    ArenaReading,
    CheckpointRequest,
    DeclaredArena,
    WitnessReading,
    parse_reading,
)
from harness.measure.settle import settle
from harness.measure.wire import WireError, receive, send

__all__ = ["ArenaReading", "DeclaredArena", "WitnessClient", "WitnessReading"]


def _own_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class WitnessClient:
    """Asks the witness at the other end of ``sock``; one request at a time.

    Args:
        sock: A connected stream socket; owned by the client from now on.
        timeout_s: Bound on each answer, in seconds.
    """

    def __init__(self, sock: socket.socket, *, timeout_s: float = 60.0) -> None:
        self._sock = sock
        self._timeout_s = timeout_s
        self._sock.settimeout(timeout_s)

    @classmethod
    def from_fd(cls, fd: int, *, timeout_s: float = 60.0) -> "WitnessClient":
        """Take over an inherited descriptor; children of this process will not inherit it.

        Raises:
            InvalidInputError: When the descriptor is no stream socket.
        """
        try:
            os.set_inheritable(fd, False)
            sock = socket.socket(fileno=fd)
        except OSError as error:
            raise InvalidInputError(
                "no witness socket", expected="an inherited stream socket", got=f"{fd}: {error}"
            ) from error
        return cls(sock, timeout_s=timeout_s)

    def checkpoint(
        self,
        point: str,
        arenas: Sequence[DeclaredArena],
        *,
        max_rss_bytes: int | None = None,
        keep: bool = True,
    ) -> WitnessReading:
        """Have this process read at ``point``, after its heap has been brought to rest.

        Declare every planned mapping, a released one too: its reading then says that it is gone.
        Declare an arena at the first checkpoint after it was made, since the witness remembers
        which mapping it was. With ``keep=False`` the reading is a probe and becomes no table row;
        a probe of ``baseline`` sets no baseline. ``max_rss_bytes`` is this process's own
        ``ru_maxrss``, measured here when it is not given.

        Raises:
            HarnessError: When the witness refuses, does not answer in time, or has ended.
        """
        settle()
        request = CheckpointRequest(
            point=point,
            arenas=tuple(arenas),
            max_rss_bytes=_own_peak_bytes() if max_rss_bytes is None else max_rss_bytes,
            keep=keep,
        )
        return parse_reading(self._ask(request.to_document()))

    def finish(self) -> int:
        """Have the witness write its tables; returns how many checkpoints they hold."""
        reply = self._ask({"request": "finish"})
        self.close()
        number = reply.get("num_checkpoints")
        if not isinstance(number, int) or reply != {"finished": True, "num_checkpoints": number}:
            raise InvalidInputError("bad answer of the witness", got=repr(reply)[:200])
        return number

    def close(self) -> None:
        """Close this end; a witness that was not asked to finish then ends with an error."""
        self._sock.close()

    def __enter__(self) -> "WitnessClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            send(self._sock, message)
            reply = receive(self._sock, timeout_s=self._timeout_s)
        except TimeoutError as error:
            # A late answer would be taken for that of the next request.
            self.close()
            raise NotEvaluableError(
                "the witness did not answer",
                expected=f"a reading within {self._timeout_s} s",
                got=str(error),
            ) from error
        except WireError:
            self.close()
            raise
        except (OSError, ValueError) as error:
            self.close()
            raise NotEvaluableError("the witness is gone", got=str(error)) from error
        if reply is None:
            self.close()
            raise NotEvaluableError("the witness is gone", got="its end of the socket closed")
        if "error" in reply:
            raise HarnessError("the witness refused", got=str(reply["error"]))
        return reply

"""A supervisor's end of its courier: what to send to another machine, and what came from one.

Imports no torch and knows nothing of what is sent.
"""

import json
import queue
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

from harness.run.processes import Child, Outcome

MET, PARCEL, LOST = "met", "parcel", "lost"
_POLL_S = 0.2
_END_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that a courier said."""

    kind: str
    """``met``, ``parcel`` or ``lost``."""
    peer: int | None
    """The other machine; ``None`` where it is about the courier itself."""
    note: Mapping[str, Any]
    folder: Path | None
    """Of a parcel's files."""
    reason: str
    """Why a machine, or the courier, is lost."""


class Post:
    """One running courier."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], pass_fds: Sequence[int] = ()
    ) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._ended: Outcome | None = None
        self._child = Child(
            "courier",
            argv,
            environment=environment,
            on_line=self._heard,
            pass_fds=pass_fds,
            stdin=subprocess.PIPE,
        )

    def send(self, peer: int, note: Mapping[str, Any], files: Sequence[Path] = ()) -> None:
        """Have a parcel sent; that a machine cannot take it is heard as an event."""
        request = {"peer": peer, "note": note, "files": [str(path) for path in files]}
        stream = self._child.process.stdin
        assert stream is not None
        try:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
        except (OSError, ValueError):
            return  # the courier is gone, which is heard as an event

    def next(self, timeout_s: float) -> Event | None:
        """The next event, or ``None`` when there is none in that time."""
        deadline = monotonic() + timeout_s
        while True:
            left = deadline - monotonic()
            try:
                return self._events.get(timeout=max(0.0, min(left, _POLL_S)))
            except queue.Empty:
                if self._child.poll() is not None and self._ended is None:
                    # It reads its lines to the end first.
                    self._ended = self._child.wait(_END_S)
                    return self._next_or_end()
                if self._ended is not None:
                    return self._end(self._ended)
                if left <= 0:
                    return None

    @property
    def ended(self) -> Outcome | None:
        """How the courier ended, once that was heard."""
        return self._ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stream = self._child.process.stdin
        assert stream is not None
        try:
            stream.close()
        except OSError:
            pass
        finally:
            self._child.wait(_END_S)

    def _next_or_end(self) -> Event:
        assert self._ended is not None
        try:
            return self._events.get_nowait()
        except queue.Empty:
            return self._end(self._ended)

    def _end(self, ended: Outcome) -> Event:
        reason = ended.message or f"the courier ended by {ended.signal or ended.exit_code}"
        return Event(kind=LOST, peer=None, note={}, folder=None, reason=reason)

    def _heard(self, line: str) -> None:
        if not line.startswith("{"):
            return  # progress
        said = json.loads(line)
        self._events.put(
            Event(
                kind=said["event"],
                peer=said.get("peer"),
                note=said.get("note", {}),
                folder=Path(said["folder"]) if "folder" in said else None,
                reason=said.get("reason", ""),
            )
        )

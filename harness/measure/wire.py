"""Length-capped canonical JSON messages over a stream socket between two of our processes.

A frame is a 4-byte big-endian length and that many bytes of RFC 8785 JSON holding one object.
Knows nothing of what the messages say.
"""

import select
import socket
import time
from collections.abc import Mapping
from typing import Any

from harness.canonical import canonical_bytes, parse_json
from harness.errors import InvalidInputError

MAX_FRAME_BYTES = 1 << 20
_LENGTH_BYTES = 4


class WireError(InvalidInputError):
    """A frame that is not one; nothing after it on the stream can be understood."""


def send(sock: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one message.

    Raises:
        WireError: When the message is longer than a frame may be; nothing was sent.
        OSError: When the peer is gone.
    """
    data = canonical_bytes(dict(message))
    if len(data) > MAX_FRAME_BYTES:
        raise WireError(
            "message is too long",
            expected=f"at most {MAX_FRAME_BYTES} bytes",
            got=f"{len(data)} bytes",
        )
    sock.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)


def _exactly(sock: socket.socket, size_bytes: int, deadline: float) -> bytes | None:
    """Read ``size_bytes``, or ``None`` when the peer's end closes first."""
    pieces = bytearray()
    while len(pieces) < size_bytes:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not select.select([sock], [], [], remaining)[0]:
            raise TimeoutError(f"{len(pieces)} of {size_bytes} bytes came in time")
        piece = sock.recv(size_bytes - len(pieces))
        if not piece:
            return None
        pieces += piece
    return bytes(pieces)


def receive(sock: socket.socket, *, timeout_s: float) -> dict[str, Any] | None:
    """Receive one message, or ``None`` when the peer has closed its end, also inside a frame.

    Raises:
        WireError: When the frame is too long, or not the canonical bytes of one JSON object.
        TimeoutError: When it has not arrived whole after ``timeout_s`` seconds.
        OSError: When the connection breaks.
    """
    deadline = time.monotonic() + timeout_s
    header = _exactly(sock, _LENGTH_BYTES, deadline)
    if header is None:
        return None
    length = int.from_bytes(header, "big")
    if length > MAX_FRAME_BYTES:
        raise WireError(
            "frame is too long", expected=f"at most {MAX_FRAME_BYTES} bytes", got=f"{length} bytes"
        )
    data = _exactly(sock, length, deadline)
    if data is None:
        return None
    try:
        message = parse_json(data, where="frame", max_bytes=MAX_FRAME_BYTES)
        canonical = isinstance(message, dict) and canonical_bytes(message) == data
    except InvalidInputError as error:
        raise WireError("frame is malformed", got=error.got) from error
    if not canonical:
        raise WireError(
            "frame is malformed",
            expected="the canonical bytes of one JSON object",
            got=repr(data[:80]),
        )
    assert isinstance(message, dict)
    return message

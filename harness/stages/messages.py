"""Length-capped canonical JSON inside byte tensors of one fixed size.

Every message has the same number of bytes on the wire, so a receiver takes no size from a sender:

    [0, 4) length, big-endian    [4, 4 + length) RFC 8785 JSON of one object    zeros to the end

Knows nothing of what the messages say.
"""

from collections.abc import Mapping
from typing import Any

import torch

from harness.canonical import canonical_bytes, parse_json
from harness.errors import InvalidInputError

MESSAGE_BYTES = 8192
_LENGTH_BYTES = 4


def empty_message() -> torch.Tensor:
    """A byte tensor to receive one message in."""
    return torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)


def encode(document: Mapping[str, Any]) -> torch.Tensor:
    """One object as a byte tensor of the fixed size.

    Raises:
        InvalidInputError: When it has no canonical form, or is too long.
    """
    data = canonical_bytes(dict(document))
    if len(data) > MESSAGE_BYTES - _LENGTH_BYTES:
        raise InvalidInputError(
            "a message between stages is too long",
            expected=f"at most {MESSAGE_BYTES - _LENGTH_BYTES} bytes",
            got=f"{len(data)} bytes",
        )
    frame = len(data).to_bytes(_LENGTH_BYTES, "big") + data
    return torch.frombuffer(bytearray(frame.ljust(MESSAGE_BYTES, b"\0")), dtype=torch.uint8)


def decode(message: torch.Tensor, *, where: str) -> dict[str, Any]:
    """The object in a byte tensor of the fixed size.

    Raises:
        InvalidInputError: When it is anything but what :func:`encode` gives for an object.
    """
    frame = bytes(message.numpy())
    length = int.from_bytes(frame[:_LENGTH_BYTES], "big")
    if length > len(frame) - _LENGTH_BYTES:
        raise InvalidInputError(
            "a message between stages states a wrong length",
            expected=f"at most {len(frame) - _LENGTH_BYTES} bytes",
            got=f"{length} bytes",
            where=where,
        )
    data = frame[_LENGTH_BYTES : _LENGTH_BYTES + length]
    document = parse_json(data, where=where, max_bytes=MESSAGE_BYTES)
    if not isinstance(document, dict) or bytes(encode(document).numpy()) != frame:
        raise InvalidInputError(
            "a message between stages is malformed",
            expected="the canonical bytes of one JSON object, then zeros",
            got=repr(data[:80]),
            where=where,
        )
    return document

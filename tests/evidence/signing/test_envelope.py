import base64
import json
from typing import Any

import pytest

from harness.errors import InvalidInputError
from harness.evidence.signing.envelope import (
    PAYLOAD_TYPE,
    Envelope,
    parse_envelope,
    pre_authentication_encoding,
)

ENVELOPE = Envelope(payload=b'{"a":1}', keyid="ab" * 32, signature=bytes(range(64)))


def test_the_encoding_is_that_of_the_protocol() -> None:
    """The example of the DSSE protocol's text."""
    encoded = pre_authentication_encoding("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_lengths_count_bytes_and_separate_type_from_payload() -> None:
    assert pre_authentication_encoding("\u00e9", b"") == b"DSSEv1 2 \xc3\xa9 0 "
    assert pre_authentication_encoding("a", b"b 1") != pre_authentication_encoding("a 1 b", b"1")
    assert ENVELOPE.signed_bytes() == b'DSSEv1 28 application/vnd.in-toto+json 7 {"a":1}'


def test_an_envelope_is_the_protocols_json() -> None:
    assert json.loads(ENVELOPE.encode()) == {
        "payload": base64.b64encode(b'{"a":1}').decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [
            {"keyid": "ab" * 32, "sig": base64.b64encode(bytes(range(64))).decode()},
        ],
    }
    assert parse_envelope(ENVELOPE.encode(), where="x") == ENVELOPE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("payload", None),
        ("payload", "not base64!"),
        ("payload", "eyJhIjoxfQ"),
        ("payload", "eyJhIjoxfQ==\n"),
        ("payload", "A" * 90_004),
        ("payloadType", "text/plain"),
        ("signatures", []),
        ("signatures", [{"keyid": "ab" * 32, "sig": "A" * 88}] * 2),
        ("signatures", [{"keyid": "ab" * 32}]),
        ("signatures", [{"keyid": "ab" * 32, "sig": "A" * 86}]),
        ("signatures", [{"keyid": "ab" * 32, "sig": "!" * 88}]),
        ("signatures", [{"keyid": "AB" * 32, "sig": "A" * 88}]),
        ("signatures", [{"keyid": "ab" * 32, "sig": "A" * 88, "key": "mine"}]),
        ("key", "mine"),
    ],
)
def test_a_malformed_envelope_is_refused(name: str, value: Any) -> None:
    document = json.loads(ENVELOPE.encode())
    document[name] = value
    with pytest.raises(InvalidInputError):
        parse_envelope(json.dumps(document).encode(), where="x")


@pytest.mark.parametrize("data", [b"", b"[]", b'{"payload":1,"payload":2}', b"[" * 1000, b"\x80"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        parse_envelope(data, where="x")

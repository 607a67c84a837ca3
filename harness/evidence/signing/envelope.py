"""DSSE envelopes around statements: what exactly is signed, and the file that carries it.

Protocol: https://github.com/secure-systems-lab/dsse (v1). Knows bytes and base64, no keys.
"""

import base64
import binascii
from dataclasses import dataclass

from harness.canonical import canonical_bytes, parse_json
from harness.evidence.documents import refuse, schema_errors

PAYLOAD_TYPE = "application/vnd.in-toto+json"
MAX_ENVELOPE_BYTES = 128 * 1024
_SCHEMA_FILE = "dsse-envelope-1.schema.json"


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """One payload and one signature of it."""

    payload: bytes
    """The statement's bytes."""
    keyid: str
    """Says which key is meant; never where it comes from."""
    signature: bytes
    payload_type: str = PAYLOAD_TYPE

    def signed_bytes(self) -> bytes:
        """What the signature is over."""
        return pre_authentication_encoding(self.payload_type, self.payload)

    def encode(self) -> bytes:
        """The bytes of an envelope file: canonical JSON."""
        return canonical_bytes(
            {
                "payload": base64.b64encode(self.payload).decode(),
                "payloadType": self.payload_type,
                "signatures": [
                    {"keyid": self.keyid, "sig": base64.b64encode(self.signature).decode()}
                ],
            }
        )


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """The unambiguous encoding of type and payload that is signed (DSSE protocol: PAE)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def parse_envelope(data: bytes, *, where: str) -> Envelope:
    """Parse an envelope file.

    Raises:
        InvalidInputError: When it is not strict JSON.
        EvidenceError: When it is not an envelope of one in-toto statement with one signature.
    """
    document = parse_json(data, where=where, max_bytes=MAX_ENVELOPE_BYTES)
    problem = "not a DSSE envelope"
    refuse(problem, schema_errors(_SCHEMA_FILE, document), where=where)
    (signature,) = document["signatures"]
    decoded, broken = {}, []
    for place, text in (
        ("$.payload", document["payload"]),
        ("$.signatures[0].sig", signature["sig"]),
    ):
        try:
            decoded[place] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            broken.append(f"{place}: not base64: {error}")
    refuse(problem, broken, where=where)
    return Envelope(
        payload=decoded["$.payload"],
        payload_type=document["payloadType"],
        keyid=signature["keyid"],
        signature=decoded["$.signatures[0].sig"],
    )

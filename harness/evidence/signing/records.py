"""Signing a record of a store: the envelope goes beside it, the record stays as it is.

    <store>/signatures/<record hex>.<key id>.json

Knows stores, envelopes and keys.
"""

from pathlib import Path

from harness.canonical import bare_hex, sha256_digest, write_durable
from harness.evidence.files import refuse_linked_folder, writing
from harness.evidence.log.shard import Leaf
from harness.evidence.record import LoadedRecord
from harness.evidence.signing.envelope import Envelope
from harness.evidence.signing.keys import sign
from harness.evidence.store import SIGNATURE_FOLDER, Store


def sign_record(record: LoadedRecord, key_file: Path) -> Path:
    """Sign a record's bytes and store the envelope; signing again changes nothing.

    Returns:
        The signature's file.

    Raises:
        InvalidInputError: When the key is no Ed25519 private key.
        NotEvaluableError: When ``cryptography`` is missing, or the signature cannot be written.
    """
    payload = record.store.read("records", record.digest)
    signature = sign(Envelope(payload=payload, keyid="", signature=b"").signed_bytes(), key_file)
    envelope = Envelope(payload=payload, keyid=signature.keyid, signature=signature.value)
    return put_signature(record.store, record.digest, envelope)


def put_signature(store: Store, record_digest: str, envelope: Envelope) -> Path:
    """Write an envelope into a store, and into its log where it keeps one."""
    data = envelope.encode()
    path = store.root / SIGNATURE_FOLDER / f"{bare_hex(record_digest)}.{envelope.keyid}.json"
    refuse_linked_folder(path.parent)
    with writing(path):
        write_durable(path, data)
    name = path.relative_to(store.root).as_posix()
    store.log([Leaf(name=name, size_bytes=len(data), digest=sha256_digest(data))], again=True)
    return path

"""Signatures of a remote store: which are about a record, and whether one is a signature at all.

By whose key it is, verification asks. Knows names and envelopes.
"""

import re
from collections.abc import Iterable

from harness.canonical import bare_hex
from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.remote.remote import Remote, read, where
from harness.evidence.remote.transfer import Transfer
from harness.evidence.scan import one_line
from harness.evidence.signing.envelope import MAX_ENVELOPE_BYTES, parse_envelope
from harness.evidence.signing.records import put_signature
from harness.evidence.store import SIGNATURE_FOLDER, Store

_NAME = re.compile(r"\A([0-9a-f]{64})\.([0-9a-f]{64})\.json\Z")


def signature_names(names: Iterable[str], records: Iterable[str]) -> list[str]:
    """Those names that are of signatures of these records, sorted."""
    wanted = {bare_hex(digest) for digest in records}
    parsed = ((name, _NAME.match(name)) for name in names)
    return sorted(name for name, found in parsed if found and found.group(1) in wanted)


def pull_signatures(
    remote: Remote, names: Iterable[str], records: Iterable[str], store: Store, done: Transfer
) -> None:
    """Bring the signatures of records that the store holds."""
    for name in signature_names(names, records):
        path = f"{SIGNATURE_FOLDER}/{name}"
        record, keyid = name.split(".")[:2]
        if (store.root / path).is_file():
            done.num_present += 1
            continue
        try:
            data = read(remote, path, max_bytes=MAX_ENVELOPE_BYTES)
            envelope = parse_envelope(data, where=where(remote, path))
            payload = store.read("records", f"sha256:{record}")
            if (envelope.keyid, envelope.payload) != (keyid, payload) or envelope.encode() != data:
                raise EvidenceError("is no signature of this record by the key it is named by")
            put_signature(store, f"sha256:{record}", envelope)
            done.moved.append(path)
        except InvalidInputError as error:
            done.refused.append(f"{path}: {one_line(error)}")

"""Checking the signatures of a store: their form always, their keys against an allow list.

A key is trusted because it is in the allow list, never because an envelope names it. Knows the
files of a store and DSSE envelopes, nothing of how a record is judged.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from harness.errors import InvalidInputError
from harness.evidence.files import read_regular
from harness.evidence.scan import FoundFile, Problem, one_line, problem
from harness.evidence.signing.envelope import MAX_ENVELOPE_BYTES, Envelope, parse_envelope
from harness.evidence.signing.keys import AllowedKeys

_NAME = re.compile(r"\A([0-9a-f]{64})\.([0-9a-f]{64})\.json\Z")


def check_signatures(
    files: list[FoundFile], records: Mapping[str, Path], keys: AllowedKeys | None
) -> list[Problem]:
    """List every signature that is not one, and with ``keys`` every record that lacks one.

    Args:
        files: The files of the store's folder of signatures.
        records: Path of every sound record, by the hexadecimal digits of its digest.
        keys: Whose signatures count; ``None`` checks only that each signature is about its record.
    """
    problems: list[Problem] = []
    signers: dict[str, list[str]] = {record: [] for record in records}
    signed: set[str] = set()
    for file in files:
        named = _NAME.match(file.path.name)
        if named is None:
            text = "is not named like a signature, <record>.<key id>.json"
            problems.append(problem(file.path, "extra", text))
            continue
        record, keyid = named.groups()
        if record not in records:
            text = "signs a record that is not here, or not sound"
            problems.append(problem(file.path, "broken_reference", text))
            continue
        found = _examine(file.path, keyid, records[record])
        if isinstance(found, Problem):
            problems.append(found)
            continue
        signers[record].append(keyid)
        if keys is None or keyid not in keys.keys:
            continue
        if keys.verify(keyid, found.signature, found.signed_bytes()):
            signed.add(record)
        else:
            text = "is not a signature by the allowed key it names"
            problems.append(problem(file.path, "forged", text))
    if keys is not None:
        for record in records.keys() - signed:
            others = ", ".join(signers[record]) or "none"
            text = f"carries no valid signature of an allowed key; it is signed by: {others}"
            problems.append(problem(records[record], "unsigned", text))
    return problems


def _examine(path: Path, keyid: str, record: Path) -> Envelope | Problem:
    """The envelope of a file, or why it is none of this record and key."""
    try:
        envelope = parse_envelope(read_regular(path, max_bytes=MAX_ENVELOPE_BYTES), where=str(path))
    except InvalidInputError as error:
        return problem(path, "invalid", one_line(error))
    if envelope.keyid != keyid:
        return problem(path, "renamed", f"names key {envelope.keyid} inside")
    if envelope.payload != record.read_bytes():
        text = "holds another payload than the record it is named by"
        return problem(path, "broken_reference", text)
    return envelope

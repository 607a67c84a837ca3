"""Pushing statements, with all that they name, from a store to a remote one.

What is sent was read through the store and so has its digest. What is there already is compared by
its size, and not read again: verifying the remote store does that. Nothing is ever overwritten but
a shard of the log by a longer one. Several may push at once.
"""

from collections.abc import Callable, Sequence

from harness.errors import EvidenceError
from harness.evidence.files import read_regular
from harness.evidence.record import LoadedRecord, verdicts_of
from harness.evidence.references import STATEMENT_TYPES
from harness.evidence.remote.remote import NO_FILE, Remote, where
from harness.evidence.remote.shards import push_shards
from harness.evidence.remote.signatures import signature_names
from harness.evidence.remote.transfer import Named, Transfer, transfer
from harness.evidence.scan import one_line
from harness.evidence.signing.envelope import MAX_ENVELOPE_BYTES
from harness.evidence.store import SIGNATURE_FOLDER, SUFFIXES, Kind, Store


def push_record(record: LoadedRecord, remote: Remote) -> Transfer:
    """Push one record with its verdicts and signatures.

    Raises:
        EvidenceError: When a verdict of the store is damaged, since it could be about this record.
        NotEvaluableError: When the remote store cannot be reached; what was sent stays.
    """
    store = record.store
    verdicts = [verdict.digest for verdict in verdicts_of(store, record.digest)]
    wanted: dict[Kind, list[str]] = {"records": [record.digest], "verdicts": verdicts}
    done = transfer(wanted, read=_reader(store), move=_sender(store, remote, remote.size))
    _push_signatures(store, remote, [record.digest], remote.size, done)
    return done


def push_all(store: Store, remote: Remote) -> Transfer:
    """Push every statement of a store, its signatures, and the shards of its log.

    Raises:
        NotEvaluableError: When the remote store cannot be reached; what was sent stays.
    """
    present = {
        f"{folder}/{name}": size
        for folder in (*SUFFIXES, SIGNATURE_FOLDER)
        for name, size in remote.names(folder).items()
    }
    wanted = {kind: store.digests(kind) for kind in STATEMENT_TYPES}
    done = transfer(wanted, read=_reader(store), move=_sender(store, remote, present.get))
    _push_signatures(store, remote, wanted["records"], present.get, done)
    if not done.refused:
        # A shard names files: it comes when they are all there.
        push_shards(store.root, remote, done)
    return done


def _reader(store: Store) -> Callable[[Named], bytes]:
    return lambda file: store.read(file.kind, file.digest)


def _sender(
    store: Store, remote: Remote, size_of: Callable[[str], int | None]
) -> Callable[[Named, bytes | None], bool]:
    def send(file: Named, data: bytes | None) -> bool:
        size, found = store.size(file.kind, file.digest), size_of(file.name)
        if found not in (None, size):
            store.read(file.kind, file.digest)  # says so when it is the file here that is damaged
        if _is_there(remote, file.name, size, found):
            return False
        remote.put(file.name, store.read(file.kind, file.digest) if data is None else data)
        return True

    return send


def _is_there(remote: Remote, name: str, size_bytes: int, found_bytes: int | None) -> bool:
    if found_bytes in (None, size_bytes):
        return found_bytes is not None
    raise EvidenceError(
        "the remote store holds something else under this name",
        expected=f"{size_bytes} bytes",
        got="no regular file" if found_bytes == NO_FILE else f"{found_bytes} bytes",
        where=where(remote, name),
        hint="`harness evidence verify` of the remote store names every damaged file; remove it",
    )


def _push_signatures(
    store: Store,
    remote: Remote,
    records: Sequence[str],
    size_of: Callable[[str], int | None],
    done: Transfer,
) -> None:
    folder = store.root / SIGNATURE_FOLDER
    listed = [path.name for path in folder.glob("*.json")] if folder.is_dir() else []
    for name in signature_names(listed, records):
        path = f"{SIGNATURE_FOLDER}/{name}"
        try:
            data = read_regular(folder / name, max_bytes=MAX_ENVELOPE_BYTES)
            if _is_there(remote, path, len(data), size_of(path)):
                done.num_present += 1
            else:
                remote.put(path, data)
                done.moved.append(path)
        except EvidenceError as error:
            done.refused.append(f"{path}: {one_line(error)}")

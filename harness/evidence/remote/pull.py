"""Pulling statements, with all that they name, from a remote store into one here.

Nothing of the remote store is trusted: only names of the right form are asked for, no more bytes
are read than a file of its kind may have, and a file enters the store under the digest that its
bytes have. Every statement is checked as if it had been written here.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from harness.canonical import sha256_digest
from harness.errors import EvidenceError
from harness.evidence.references import STATEMENT_TYPES, parse_kind_bytes
from harness.evidence.remote.remote import Remote, nothing_there, read, where
from harness.evidence.remote.shards import pull_shards
from harness.evidence.remote.signatures import pull_signatures
from harness.evidence.remote.transfer import Named, Transfer, look_at, transfer
from harness.evidence.scan import one_line
from harness.evidence.store import MAX_FILE_BYTES, SIGNATURE_FOLDER, SUFFIXES, Kind, Store

_MIN_PREFIX = 4


def pull_record(reference: str, remote: Remote, store: Store) -> Transfer:
    """Pull one record with its verdicts and signatures.

    Every verdict of the remote store is looked at, since only its content says what it is about.

    Args:
        reference: A digest, or the first hexadecimal digits of one.
        remote: Where it is.
        store: Where it goes.

    Raises:
        EvidenceError: When there is no such record, or more than one.
        NotEvaluableError: When a side cannot be reached or written; what was copied stays.
    """
    record = _resolve(reference, remote)
    done = _take({"records": [record]}, remote, store)
    if not store.has("records", record):
        return done
    about, damaged = _verdicts_about(record, remote, store)
    more = _take({"verdicts": about}, remote, store)
    done.moved += more.moved
    done.num_present += more.num_present
    done.refused += [*damaged, *more.refused]
    pull_signatures(remote, remote.names(SIGNATURE_FOLDER), [record], store, done)
    return done


def pull_all(remote: Remote, store: Store) -> Transfer:
    """Pull every statement of a remote store, its signatures, and the shards of its log.

    Raises:
        EvidenceError: When there is no store at that address.
        NotEvaluableError: When a side cannot be reached or written; what was copied stays.
    """
    wanted = {kind: remote_digests(remote, kind) for kind in STATEMENT_TYPES}
    if not any(wanted.values()):
        raise nothing_there(remote)
    done = _take(wanted, remote, store)
    here = [digest for digest in wanted["records"] if store.has("records", digest)]
    pull_signatures(remote, remote.names(SIGNATURE_FOLDER), here, store, done)
    pull_shards(remote, store, done)
    store.log([store.leaf(name) for name in done.moved if not name.startswith("log/")], again=True)
    return done


def remote_digests(remote: Remote, kind: Kind) -> list[str]:
    """Digests of every properly named file of a kind, sorted."""
    proper = re.compile(rf"[0-9a-f]{{64}}{re.escape(SUFFIXES[kind])}").fullmatch
    return [f"sha256:{name[:64]}" for name in sorted(remote.names(kind)) if proper(name)]


def read_checked(remote: Remote, file: Named) -> bytes:
    """The bytes of a remote file, which have its digest.

    Raises:
        EvidenceError: When it is missing, too long, or holds anything else.
    """
    limit = MAX_FILE_BYTES[file.kind] if file.size_bytes is None else file.size_bytes
    data = read(remote, file.name, max_bytes=min(limit, MAX_FILE_BYTES[file.kind]))
    got = sha256_digest(data)
    if got != file.digest:
        raise EvidenceError(
            "remote file was changed: its bytes do not have the digest it is named by",
            expected=file.digest if file.size_bytes is None else f"{file.size_bytes} bytes of it",
            got=f"{len(data)} bytes with {got}",
            where=where(remote, file.name),
        )
    return data


def _resolve(reference: str, remote: Remote) -> str:
    prefix = reference.removeprefix("sha256:").lower()
    if re.fullmatch(r"[0-9a-f]{64}", prefix):
        return f"sha256:{prefix}"
    if not re.fullmatch(rf"[0-9a-f]{{{_MIN_PREFIX},64}}", prefix):
        raise EvidenceError(
            "not a reference to evidence",
            expected=f"at least {_MIN_PREFIX} hexadecimal digits of a digest",
            got=repr(reference)[:200],
        )
    listed = remote_digests(remote, "records")
    found = [digest for digest in listed if digest.startswith(f"sha256:{prefix}")]
    if len(found) != 1:
        raise EvidenceError(
            "reference is ambiguous" if found else "no such evidence",
            expected=f"one record that starts with {prefix}",
            got=", ".join(digest[7:23] for digest in found[:20]) or f"none of {len(listed)}",
            where=remote.url,
        )
    return found[0]


def _take(wanted: Mapping[Kind, Sequence[str]], remote: Remote, store: Store) -> Transfer:
    # In turn: each thread that puts statements has a shard of its own.
    return transfer(wanted, read=_reader(remote, store), move=_taker(remote, store), in_turn=True)


def _reader(remote: Remote, store: Store) -> Callable[[Named], bytes]:
    def statement(file: Named) -> bytes:
        if store.has(file.kind, file.digest):
            return store.read(file.kind, file.digest)
        return read_checked(remote, file)

    return statement


def _taker(remote: Remote, store: Store) -> Callable[[Named, bytes | None], bool]:
    put = {"records": store.put_record, "verdicts": store.put_verdict, "studies": store.put_study}

    def take(file: Named, data: bytes | None) -> bool:
        if store.has(file.kind, file.digest):
            return False
        if data is None:
            store.put(file.kind, read_checked(remote, file))
        else:
            statement = parse_kind_bytes(file.kind, data, where=where(remote, file.name))
            put[file.kind](statement)
        return True

    return take


def _verdicts_about(record: str, remote: Remote, store: Store) -> tuple[list[str], list[str]]:
    """Digests of a record's verdicts, and what is wrong with verdicts that cannot be read."""
    about: list[str] = []

    def look(file: Named) -> None:
        data = _reader(remote, store)(file)
        statement = parse_kind_bytes("verdicts", data, where=where(remote, file.name))
        if statement["predicate"]["record_digest"] == record:
            about.append(file.digest)

    files = [Named(kind="verdicts", digest=each) for each in remote_digests(remote, "verdicts")]
    damaged = [f"{file.name}: {one_line(error)}" for file, error in look_at(files, look)]
    return sorted(about), damaged

"""The content-addressed store: files named by the SHA-256 of their bytes, written once.

    <root>/records/<hex>.json  verdicts/<hex>.json  tables/<hex>.parquet
           plans/<hex>.json    manifests/<hex>.jsonl
           studies/<hex>.json  tensors/<hex>.safetensors
           signatures/<hex>.<key id>.json, log/<shard id>.jsonl where there are any

A statement becomes visible only after everything it names, so a record that can be seen is
complete. A store that keeps a log appends each statement, with all it names, right after it became
visible. Every read hashes what it read. Readers never look at temporary files and never follow
links. Knows names and bytes, nothing of how a record is judged.
"""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.canonical import (
    bare_hex,
    file_digest,
    is_digest,
    sha256_digest,
    sync_folder,
    write_durable,
)
from harness.errors import EvidenceError
from harness.evidence.files import occupied, read_regular, refuse_linked_folder, writing
from harness.evidence.log.shard import LOG_FOLDER, Leaf, has_log, not_yet_logged
from harness.evidence.log.writer import ShardWriter, start_log
from harness.evidence.statement import (
    MAX_STATEMENT_BYTES,
    RECORD_TYPE,
    VERDICT_TYPE,
    encode_statement,
    parse_statement,
    record_predicate,
    verdict_predicate,
)
from harness.evidence.studies import (
    MAX_STUDY_BYTES,
    encode_study,
    parse_study,
    study_predicate,
)
from harness.evidence.tables import MAX_TABLE_BYTES, WrittenTable, decode

Kind = Literal["records", "verdicts", "tables", "plans", "manifests", "studies", "tensors"]
SUFFIXES: Mapping[Kind, str] = {
    "records": ".json",
    "verdicts": ".json",
    "tables": ".parquet",
    "plans": ".json",
    "manifests": ".jsonl",
    "studies": ".json",
    "tensors": ".safetensors",
}
MAX_FILE_BYTES: Mapping[Kind, int] = {
    "records": MAX_STATEMENT_BYTES,
    "verdicts": MAX_STATEMENT_BYTES,
    "tables": MAX_TABLE_BYTES,
    "plans": 64 << 20,
    "manifests": 256 << 20,
    "studies": MAX_STUDY_BYTES,
    "tensors": (1 << 30) + (16 << 20),
}
SIGNATURE_FOLDER = "signatures"
MIN_PREFIX = 4
_HEX_PREFIX = re.compile(r"\A[0-9a-f]{1,64}\Z")


@dataclass(frozen=True)
class Store:
    """A store under one folder; the folder is made by the first write."""

    root: Path
    _writer: ShardWriter = field(default_factory=ShardWriter, compare=False, repr=False)

    def path(self, kind: Kind, digest: str) -> Path:
        """Where the file with ``digest`` is, or would be."""
        return self.root / kind / f"{bare_hex(digest)}{SUFFIXES[kind]}"

    def put(self, kind: Kind, data: bytes) -> str:
        """Store bytes under their digest, which is returned; they are neither checked nor logged.

        Raises:
            EvidenceError: When they are too long, or the name holds something else.
            NotEvaluableError: When they cannot be written.
        """
        if len(data) > MAX_FILE_BYTES[kind]:
            raise EvidenceError(
                f"too long to be one of {kind}",
                expected=f"at most {MAX_FILE_BYTES[kind]} bytes",
                got=f"{len(data)} bytes",
            )
        digest = sha256_digest(data)
        path = self.path(kind, digest)
        refuse_linked_folder(path.parent)
        # Known before it is read: what stands there could be a pipe, or endless.
        if os.path.lexists(path) and self._size(path) != len(data):
            raise occupied(path)
        with writing(path):
            write_durable(path, data)
        return digest

    def put_table(self, source: Path | bytes) -> str:
        """Store one table, given as bytes or as a file, and return its digest."""
        limit = MAX_FILE_BYTES["tables"]
        data = source if isinstance(source, bytes) else read_regular(source, max_bytes=limit)
        return self.put("tables", data)

    def put_plan(self, data: bytes) -> str:
        """Store a plan file's bytes and return their digest (the plan's *file* digest)."""
        return self.put("plans", data)

    def put_manifest(self, data: bytes) -> str:
        """Store a tensor manifest's bytes and return their digest."""
        return self.put("manifests", data)

    def put_record(self, statement: Mapping[str, Any]) -> str:
        """Store a record statement and return its digest.

        Raises:
            EvidenceError: When it is not valid, or names a file that this store does not hold.
        """
        data = encode_statement(statement)
        predicate = record_predicate(statement)
        named = [self._require("plans", predicate.plan.file_digest)]
        if predicate.manifest_digest is not None:
            named.append(self._require("manifests", predicate.manifest_digest))
        for table in predicate.tables:
            named.append(self._require("tables", table.digest, table.size_bytes))
        return self._put_statement("records", data, named)

    def put_verdict(self, statement: Mapping[str, Any]) -> str:
        """Store a verdict statement and return its digest (see :meth:`put_record`)."""
        data = encode_statement(statement)
        predicate = verdict_predicate(statement)
        table = predicate.differences
        self._require("records", predicate.record_digest)
        named = [self._require("tables", table.digest, table.size_bytes)]
        return self._put_statement("verdicts", data, named)

    def start_log(self) -> None:
        """Keep a log from now on; nothing changes when the store keeps one already."""
        refuse_linked_folder(self.root / LOG_FOLDER)
        with writing(self.root / LOG_FOLDER):
            start_log(self.root)

    def log(self, leaves: Sequence[Leaf], *, again: bool = False) -> None:
        """Append leaves where the store keeps a log.

        Args:
            leaves: What was written.
            again: It may have been written, and logged, before; appends what no shard names yet.

        Raises:
            NotEvaluableError: When they cannot be written; the log is as it was before.
        """
        if has_log(self.root):
            wanted = not_yet_logged(self.root, leaves) if again else leaves
            with writing(self.root / LOG_FOLDER):
                self._writer.append(self.root, wanted)

    def put_tensors(self, source: Path) -> tuple[str, int]:
        """Store one file of kept tensors; returns its digest and its size in bytes."""
        data = read_regular(source, max_bytes=MAX_FILE_BYTES["tensors"])
        return self.put("tensors", data), len(data)

    def put_study(self, statement: Mapping[str, Any]) -> str:
        """Store a study's statement and return its digest (see :meth:`put_record`)."""
        data = encode_study(statement)
        predicate = study_predicate(statement)
        for digest in predicate.records:
            self._require("records", digest)
        named = [self._require("tables", each.digest, each.size_bytes) for each in predicate.tables]
        for file in predicate.tensors:
            named.append(self._require("tensors", file.digest, file.size_bytes))
        return self._put_statement("studies", data, named)

    def has(self, kind: Kind, digest: str) -> bool:
        """Whether a regular file has this name; its bytes are not read."""
        return self._size(self.path(kind, digest)) is not None

    def size(self, kind: Kind, digest: str) -> int:
        """Size in bytes of a file that the store holds."""
        return self._require(kind, digest).size_bytes

    def leaf(self, name: str) -> Leaf:
        """The leaf that binds a file of the store as it is, by its name inside the store."""
        path = self.root / name
        return Leaf(name=name, size_bytes=path.lstat().st_size, digest=file_digest(path))

    def digests(self, kind: Kind) -> list[str]:
        """Digests of every properly named file of a kind, sorted."""
        folder = self.root / kind
        refuse_linked_folder(folder)
        if not folder.is_dir():
            return []
        proper = re.compile(rf"[0-9a-f]{{64}}{re.escape(SUFFIXES[kind])}").fullmatch
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if proper(e.name) and e.is_file(follow_symlinks=False)]
        return [f"sha256:{name[:64]}" for name in sorted(names)]

    def read(self, kind: Kind, digest: str) -> bytes:
        """Read one file and check that its bytes have the digest it is named by."""
        path = self.path(kind, digest)
        refuse_linked_folder(path.parent)
        data = read_regular(path, max_bytes=MAX_FILE_BYTES[kind])
        if (got := sha256_digest(data)) != digest:
            raise EvidenceError(
                "file was changed: its bytes do not have the digest it is named by",
                expected=digest,
                got=got,
                where=str(path),
                hint="restore the file; `harness evidence verify` lists every damaged one",
            )
        return data

    def read_record(self, digest: str) -> dict[str, Any]:
        """Read and check one record statement."""
        return self._read_statement("records", digest, RECORD_TYPE)

    def read_verdict(self, digest: str) -> dict[str, Any]:
        """Read and check one verdict statement."""
        return self._read_statement("verdicts", digest, VERDICT_TYPE)

    def read_study(self, digest: str) -> dict[str, Any]:
        """Read and check one study's statement."""
        return parse_study(self.read("studies", digest), where=str(self.path("studies", digest)))

    def read_table_rows(self, table: WrittenTable) -> list[dict[str, Any]]:
        """Read the rows of one table that a statement names, checking all it says of it."""
        where = str(self.path("tables", table.digest))
        data = self.read("tables", table.digest)
        if len(data) != table.size_bytes:
            raise EvidenceError(
                f"table {table.name} has another size than its statement says",
                expected=f"{table.size_bytes} bytes",
                got=f"{len(data)} bytes",
                where=where,
            )
        return decode(table.name, data, where=where, num_rows=table.num_rows)

    def resolve(self, reference: str, kind: Kind = "records") -> str:
        """Digest of the one file whose digest starts with ``reference``.

        Args:
            reference: A whole digest, or at least four of its first hexadecimal digits.
            kind: Which files to look at.

        Raises:
            EvidenceError: When none or more than one matches.
        """
        if is_digest(reference) and reference.startswith("sha256:"):
            refuse_linked_folder(self.root / kind)
            if self.has(kind, reference):
                return reference  # without a look at every other name
        prefix = reference.removeprefix("sha256:").lower()
        if len(prefix) < MIN_PREFIX or not _HEX_PREFIX.match(prefix):
            raise EvidenceError(
                "not a reference to evidence",
                expected=f"a path, or at least {MIN_PREFIX} hexadecimal digits of a digest",
                got=repr(reference)[:200],
            )
        found = [d for d in self.digests(kind) if bare_hex(d).startswith(prefix)]
        if len(found) != 1:
            problem = "reference is ambiguous" if found else "no such evidence"
            raise EvidenceError(
                problem,
                expected=f"one of {kind} that starts with {prefix}",
                got=", ".join(bare_hex(digest)[:16] for digest in found[:20]) or "none",
                where=str(self.root),
                hint="list them with `harness evidence ls`",
            )
        return found[0]

    def _read_statement(self, kind: Kind, digest: str, expected: str) -> dict[str, Any]:
        where = str(self.path(kind, digest))
        statement = parse_statement(self.read(kind, digest), where=where)
        if statement["predicateType"] != expected:
            raise EvidenceError(
                f"another kind of statement among the {kind}",
                expected=expected,
                got=statement["predicateType"],
                where=where,
            )
        return statement

    def _require(self, kind: Kind, digest: str, size_bytes: int | None = None) -> Leaf:
        """Refuse what the store does not hold; returns the leaf that binds it."""
        path = self.path(kind, digest)
        size = self._size(path)
        if size is None or size_bytes not in (None, size):
            raise EvidenceError(
                "a statement may only name what the store holds",
                expected="a file" if size_bytes is None else f"a file of {size_bytes} bytes",
                got="nothing" if size is None else f"{size} bytes",
                where=str(path),
                hint="store tables, plan and manifest before the statement",
            )
        return Leaf(name=f"{kind}/{path.name}", size_bytes=size, digest=digest)

    @staticmethod
    def _size(path: Path) -> int | None:
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def _put_statement(self, kind: Kind, data: bytes, named: Sequence[Leaf]) -> str:
        again = self.has(kind, sha256_digest(data))
        digest = self.put(kind, data)
        with writing(self.root):
            sync_folder(self.root)  # its folders may be another writer's, and just made
        self.log([*named, self._require(kind, digest, len(data))], again=again)
        return digest

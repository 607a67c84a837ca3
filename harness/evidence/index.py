"""The index of a store: what its statements say of themselves, so that they are found quickly.

A cache beside no store: one folder of two Parquet files in the user's cache, named by the digest of
the store's real path. It is compared with the names in the store each time; what is new is read,
what is gone is dropped, and an index that is damaged or of another form is made again. It only
finds: whoever shows a record reads it from the store. Nothing that judges imports this.
"""

import io
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.canonical import parse_json, sha256_digest
from harness.errors import HarnessError
from harness.evidence.files import read_regular
from harness.evidence.pages import check_bounds, check_footer
from harness.evidence.store import MAX_FILE_BYTES, Store
from harness.evidence.tables import MAX_TABLE_BYTES, MAX_TABLE_CELLS

Indexed = Literal["records", "verdicts"]
_FOLDER = "evidence-index-1"
_MAX_TEXT_CHARS = 300
_COLUMNS: Mapping[Indexed, Mapping[str, str]] = {
    "records": {
        "experiment": "experiment",
        "plan": "plan.digest",
        "model": "plan.model.repository",
        "date": "started_at",
        "commit": "source.git_commit",
    },
    "verdicts": {"record": "record_digest", "status": "status"},
}
"""Columns beside ``digest``, and where a statement's predicate says them."""
UNREAD = "unread"
"""A column: whether the file could not be read; it is tried again each time."""


@dataclass(frozen=True, kw_only=True)
class Index:
    """One row for each record and for each verdict of a store."""

    records: pa.Table
    """``digest``, ``experiment``, ``plan``, ``model``, ``date``, ``commit``, ``unread``."""
    verdicts: pa.Table
    """``digest``, ``record``, ``status``, ``unread``."""
    num_read: int
    """Statements that had to be read, because the cached index did not have them."""
    num_dropped: int
    """Rows of the cached index whose files are gone."""


def open_index(store: Store, cache: Path) -> Index:
    """The index of a store as it is now; what changed is written back where that is possible.

    Args:
        store: The store.
        cache: The user's cache folder.
    """
    folder = index_folder(store, cache)
    records, verdicts = _current(store, "records", folder), _current(store, "verdicts", folder)
    return Index(
        records=records[0],
        verdicts=verdicts[0],
        num_read=records[1] + verdicts[1],
        num_dropped=records[2] + verdicts[2],
    )


def index_folder(store: Store, cache: Path) -> Path:
    """Where the index of a store lies."""
    path = os.path.realpath(store.root)
    return cache / _FOLDER / sha256_digest(os.fsencode(path)).removeprefix("sha256:")[:32]


def _current(store: Store, kind: Indexed, folder: Path) -> tuple[pa.Table, int, int]:
    """The rows of one kind, how many were read anew, and how many were dropped."""
    path = folder / f"{kind}.parquet"
    known = _load(path, kind)
    names = store.digests(kind)
    if known.column("digest").to_pylist() == names and not pc.any(known.column(UNREAD)).as_py():
        return known, 0, 0
    wanted = set(names)
    rows = {row["digest"]: row for row in known.to_pylist() if not row[UNREAD]}
    kept = {digest: row for digest, row in rows.items() if digest in wanted}
    missing = [digest for digest in names if digest not in kept]
    for digest in missing:
        kept[digest] = _row(store, kind, digest)
    listed = [kept[digest] for digest in names]
    table = pa.Table.from_pylist(listed, schema=_schema(kind))
    _save(path, table)
    return table, len(missing), len(rows) - (len(kept) - len(missing))


def _schema(kind: Indexed) -> pa.Schema:
    texts = [pa.field(name, pa.string()) for name in ("digest", *_COLUMNS[kind])]
    return pa.schema(texts).append(pa.field(UNREAD, pa.bool_()))


def _row(store: Store, kind: Indexed, digest: str) -> dict[str, Any]:
    try:
        return {"digest": digest, **read_words(store, kind, digest), UNREAD: False}
    except HarnessError:
        return {"digest": digest, **dict.fromkeys(_COLUMNS[kind]), UNREAD: True}


def read_words(store: Store, kind: Indexed, digest: str) -> dict[str, str | None]:
    """What one statement of a store says of itself, by column.

    Its digest is checked; its rules are not, which takes longer than all else together.

    Raises:
        InvalidInputError: When it is damaged, or no JSON.
    """
    data = store.read(kind, digest)
    statement = parse_json(data, where=digest, max_bytes=MAX_FILE_BYTES[kind])
    return {
        name: _text(statement, ("predicate", *place.split(".")))
        for name, place in _COLUMNS[kind].items()
    }


def _text(document: Any, place: tuple[str, ...]) -> str | None:
    for name in place:
        document = document.get(name) if isinstance(document, dict) else None
    if not isinstance(document, str):
        return None
    # A lone surrogate has no place in Parquet, and no real value here has one.
    return document[:_MAX_TEXT_CHARS].encode("utf-8", "replace").decode()


def _load(path: Path, kind: Indexed) -> pa.Table:
    """The cached rows; none when there is no such file, or it is anything but a sound index."""
    schema = _schema(kind)
    try:
        data = read_regular(path, max_bytes=MAX_TABLE_BYTES)
        check_footer(data)
        file = pq.ParquetFile(io.BytesIO(data))
        if file.schema_arrow == schema:
            check_bounds(file.metadata, data, max_bytes=MAX_TABLE_BYTES, max_cells=MAX_TABLE_CELLS)
            table: pa.Table = file.read(use_threads=False)
            table.validate(full=True)
            return table
    except (HarnessError, pa.ArrowException, OSError, ValueError, OverflowError):
        pass
    return schema.empty_table()


def _save(path: Path, table: pa.Table) -> None:
    """Replace the cached rows at once; without a writable cache the next search reads again."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Plain pages: their bounds can be checked before they are read.
            pq.write_table(
                table, temporary, compression="zstd", store_schema=False, use_dictionary=False
            )
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError:
        return

"""Declared tables as Parquet bytes: written durably, read strictly and within bounds.

Refuses other columns, other types and anything too large before it is decompressed. Knows nothing
of what the columns mean.
"""

import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.canonical import sha256_digest, write_durable
from harness.errors import EvidenceError
from harness.evidence.columns import column
from harness.evidence.declared import TABLES, Table
from harness.evidence.pages import check_bounds, check_footer
from harness.evidence.study_tables import STUDY_TABLES

_ALL_TABLES: Mapping[str, Table] = {**TABLES, **STUDY_TABLES}
MAX_TABLE_BYTES = 256 << 20
"""Most bytes of one table, in its file and decompressed."""
MAX_TABLE_CELLS = 1 << 24
"""Most values of one table, counting each element of a list."""
MAX_ROWS_BYTES = 768 << 20
"""Most memory that the rows of one table may take, by :func:`rows_bytes`."""
_VALUE_BYTES = 64
"""Of an object without its characters: the largest, an empty text or list, and its place."""
_COPIES = 6
"""Bytes of memory for each byte of a value: four in a text with one wide character, and two in the
buffers that it is made from."""


@dataclass(frozen=True, kw_only=True)
class WrittenTable:
    """A reference to one written table, as a statement names it."""

    name: str
    realization: int | None
    """Which fresh realization wrote it; ``None`` when it covers the whole record."""
    digest: str
    num_rows: int
    size_bytes: int
    stage: int | None = None
    """Which stage of a chain it is about; ``None`` where there are no stages, or it covers all."""


def table_place(name: str, realization: int | None, stage: int | None) -> str:
    """How one table of a record is written, such as ``steps/r0`` or ``steps/r0/s1``."""
    parts = (name, "" if realization is None else f"/r{realization}")
    return "".join((*parts, "" if stage is None else f"/s{stage}"))


def encode(name: str, rows: Iterable[Mapping[str, Any]]) -> tuple[bytes, int]:
    """Encode rows as Parquet bytes; returns the bytes and the number of rows.

    Raises:
        EvidenceError: When a row has a missing, unknown, mistyped or null-where-required column.
    """
    table = _ALL_TABLES[name]
    listed = [dict(row) for row in rows]
    for index, row in enumerate(listed):
        if row.keys() != table.columns.keys():
            raise EvidenceError(
                f"row {index} of table {name} has other columns",
                expected=", ".join(table.columns),
                got=", ".join(row),
            )
        for field, kind in table.columns.items():
            if row[field] is None and not kind.endswith("?"):
                raise EvidenceError(f"row {index} of table {name} has no {field}")
    data = pa.Table.from_arrays(
        [_column(name, field, kind, listed) for field, kind in table.columns.items()],
        schema=table.schema,
    )
    buffer = io.BytesIO()
    pq.write_table(data, buffer, compression="zstd", store_schema=False, use_dictionary=False)
    return buffer.getvalue(), len(listed)


def _column(table: str, name: str, kind: str, rows: Sequence[Mapping[str, Any]]) -> "pa.Array[Any]":
    try:
        return column(kind.removesuffix("?"), [row[name] for row in rows])
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise EvidenceError(
            f"table {table} has a mistyped value in {name}", expected=kind, got=str(error)
        ) from error


def write(
    folder: Path, name: str, rows: Iterable[Mapping[str, Any]], *, realization: int | None = None
) -> WrittenTable:
    """Write one table durably as ``<folder>/<name>.parquet``."""
    data, num_rows = encode(name, rows)
    write_durable(folder / f"{name}.parquet", data)
    return WrittenTable(
        name=name,
        realization=realization,
        digest=sha256_digest(data),
        num_rows=num_rows,
        size_bytes=len(data),
    )


def decode(
    name: str, data: bytes, *, where: str, num_rows: int | None = None
) -> list[dict[str, Any]]:
    """Decode Parquet bytes into rows, refusing anything but the declared columns.

    Rows of a table that an earlier release wrote lack its later columns.

    Args:
        name: The table's name.
        data: The whole file.
        where: What is being read, for error messages.
        num_rows: How many rows there must be, where it is known.

    Raises:
        EvidenceError: When the bytes are no such table, have another number of rows, or are too
            large to be one.
    """
    try:
        file = _open(name, data, where=where)
        # Before the rows are made, which can take far more memory than the file.
        if num_rows not in (None, file.metadata.num_rows):
            raise EvidenceError(
                f"table {name} has another length than its statement says",
                expected=f"{num_rows} rows",
                got=f"{file.metadata.num_rows} rows",
                where=where,
            )
        rows: list[dict[str, Any]] = file.read(use_threads=False).to_pylist()
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise EvidenceError(f"not a table {name}", got=str(error)[:500], where=where) from error
    return rows


def inspect(name: str, data: bytes, *, where: str) -> int:
    """Check columns and bounds of Parquet bytes without decompressing; returns the rows.

    Raises:
        EvidenceError: As :func:`decode` does.
    """
    try:
        return int(_open(name, data, where=where).metadata.num_rows)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise EvidenceError(f"not a table {name}", got=str(error)[:500], where=where) from error


def rows_bytes(num_columns: int, num_rows: int, num_values: int, num_bytes: int) -> int:
    """An upper bound of the memory that rows take as objects, which no file size shows.

    Args:
        num_columns: Columns of the table.
        num_rows: Its rows, each a dictionary.
        num_values: Its values, counting nulls and the elements of lists.
        num_bytes: Its values as bytes, decompressed.
    """
    row = sys.getsizeof(dict.fromkeys(range(num_columns))) + _VALUE_BYTES
    return num_rows * row + num_values * _VALUE_BYTES + num_bytes * _COPIES


def _open(name: str, data: bytes, *, where: str) -> pq.ParquetFile:
    table = _ALL_TABLES.get(name)
    if table is None:
        known = ", ".join(_ALL_TABLES)
        raise EvidenceError("unknown table", expected=known, got=name, where=where)
    if len(data) > MAX_TABLE_BYTES:
        raise ValueError(f"{len(data)} bytes, more than {MAX_TABLE_BYTES}")
    check_footer(data)
    file = pq.ParquetFile(pa.BufferReader(data))
    if file.schema_arrow not in (table.schema, table.earlier_schema):
        raise EvidenceError(
            f"table {name} has other columns",
            expected=str(table.schema.names),
            got=str(file.schema_arrow.names)[:2000],
            where=where,
        )
    found = check_bounds(file.metadata, data, max_bytes=MAX_TABLE_BYTES, max_cells=MAX_TABLE_CELLS)
    num_rows = file.metadata.num_rows
    needed = rows_bytes(len(table.columns), num_rows, found.num_values, found.num_bytes)
    if needed > MAX_ROWS_BYTES:
        raise ValueError(
            f"too large: its {num_rows} rows can take {needed} bytes of memory, more than "
            f"{MAX_ROWS_BYTES}"
        )
    return file

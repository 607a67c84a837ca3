"""Bounds on what a Parquet file grows to, checked before the reader takes it at its word.

A footer of three bytes a column chunk becomes hundreds in memory, so its length is bounded before
it is parsed. It can understate what its pages decompress to, and the reader trusts the page
headers: adding those up first makes the footer's figure a real bound. Knows Thrift's compact
protocol as far as page headers use it, nothing of what a table means.
"""

from dataclasses import dataclass
from typing import Any

_DATA_PAGE = 0
_PLAIN = 0
_PAGE_TYPE, _PAGE_SIZE, _PACKED_SIZE, _DATA_HEADER = 1, 2, 3, 5
_NUM_VALUES, _ENCODING = 1, 2
_BOOLEANS = (1, 2)
_INTEGERS = (4, 5, 6)
_FIXED_BYTES = {3: 1, 7: 8}
_BINARY, _STRUCT = 8, 12
_MAX_VARINT_BYTES = 10
_MAX_DEPTH = 8
_MAX_CHUNKS = 10_000
_MAX_PAGES = 10_000


MAX_FOOTER_BYTES = 1 << 20
_TAIL_BYTES = 8
_MAGIC = b"PAR1"


@dataclass(frozen=True, kw_only=True)
class PageTotals:
    """Sums over the pages of one column chunk, or of all."""

    num_bytes: int
    """Bytes when decompressed, with the page headers, as a footer counts them."""
    num_values: int


def check_footer(data: bytes) -> None:
    """Refuse a file whose footer is not there, or is too long to be parsed within bounds.

    Args:
        data: The whole file; it ends in the footer, its length in four bytes, and ``PAR1``.

    Raises:
        ValueError: When it does not, or its footer is longer than :data:`MAX_FOOTER_BYTES`.
    """
    if len(data) < len(_MAGIC) + _TAIL_BYTES or not data.endswith(_MAGIC):
        raise ValueError("no Parquet footer")
    length = int.from_bytes(data[-_TAIL_BYTES : -len(_MAGIC)], "little")
    if length > min(MAX_FOOTER_BYTES, len(data) - len(_MAGIC) - _TAIL_BYTES):
        raise ValueError(f"footer of {length} bytes, more than {MAX_FOOTER_BYTES} or the file")


def check_bounds(meta: Any, data: bytes, *, max_bytes: int, max_cells: int) -> PageTotals:
    """Refuse a file that would grow beyond the limits; returns what it grows to.

    Args:
        meta: The file's ``pyarrow.parquet.FileMetaData``.
        data: The whole file.
        max_bytes: Most decompressed bytes of all pages.
        max_cells: Most values, counting nulls and the elements of lists.

    Raises:
        ValueError: When it would, or when its footer and its pages disagree.
    """
    if meta.num_row_groups * meta.num_columns > _MAX_CHUNKS:
        raise ValueError(f"{meta.num_row_groups} row groups")
    groups = [meta.row_group(index) for index in range(meta.num_row_groups)]
    rows = sum(group.num_rows for group in groups)
    if rows != meta.num_rows:
        raise ValueError(f"row groups hold {rows} rows, the footer says {meta.num_rows}")
    num_bytes = cells = 0
    for group in groups:
        for index in range(meta.num_columns):
            column = group.column(index)
            num_bytes += column.total_uncompressed_size
            cells += max(column.num_values, group.num_rows)
            if num_bytes > max_bytes or cells > max_cells:
                raise ValueError(
                    f"too large: at least {num_bytes} bytes in {cells} values, more than "
                    f"{max_bytes} or {max_cells}"
                )
            _check_column(column, data)
    return PageTotals(num_bytes=num_bytes, num_values=cells)


def _check_column(column: Any, data: bytes) -> None:
    if column.has_dictionary_page:
        raise ValueError("has a dictionary, expected plain pages")
    start, length = column.data_page_offset, column.total_compressed_size
    if start < 0 or length < 0 or start + length > len(data):
        raise ValueError("a column leaves the file")
    pages = page_totals(data, start, start + length, max_pages=_MAX_PAGES)
    said = (column.total_uncompressed_size, column.num_values)
    if (pages.num_bytes, pages.num_values) != said:
        raise ValueError(
            f"pages hold {pages.num_bytes} bytes in {pages.num_values} values, "
            f"the footer says {said[0]} in {said[1]}"
        )


def page_totals(data: bytes, start: int, end: int, *, max_pages: int) -> PageTotals:
    """Add up the page headers in ``data[start:end]``.

    Only plain data pages are taken: another encoding can say one long value a million times in a
    few bytes, which no sum of sizes would show.

    Raises:
        ValueError: When the headers are malformed, of another kind, or too many.
    """
    num_bytes = num_values = 0
    for _ in range(max_pages):
        if start == end:
            return PageTotals(num_bytes=num_bytes, num_values=num_values)
        numbers, structs, body = _struct(data, start, end, depth=0)
        header = structs.get(_DATA_HEADER, {})
        if numbers.get(_PAGE_TYPE) != _DATA_PAGE or header.get(_ENCODING) != _PLAIN:
            raise ValueError("page is not a plain data page")
        sizes = (numbers.get(_PAGE_SIZE, -1), numbers.get(_PACKED_SIZE, -1))
        values = header.get(_NUM_VALUES, -1)
        if min(*sizes, values) < 0:
            raise ValueError("page header without sizes")
        num_bytes += body - start + sizes[0]
        num_values += values
        start = body + sizes[1]
        if start > end:
            raise ValueError("page leaves its column")
    raise ValueError(f"more than {max_pages} pages in one column")


def _struct(
    data: bytes, at: int, end: int, *, depth: int
) -> tuple[dict[int, int], dict[int, dict[int, int]], int]:
    """Integers and structs of the struct at ``at``, by field id, and where it ends."""
    if depth > _MAX_DEPTH:
        raise ValueError("page header is nested too deep")
    numbers: dict[int, int] = {}
    structs: dict[int, dict[int, int]] = {}
    field = 0
    # Headers are many, so what most of their bytes are is read here and not by a call each.
    while mark := data[at] if at < end else _byte(data, at, end):
        at += 1
        kind = mark & 15
        if mark >> 4:
            field += mark >> 4
        else:
            field, at = _signed(data, at, end)
        if kind in _INTEGERS:
            if at < end and (byte := data[at]) < 128:
                numbers[field], at = (byte >> 1) ^ -(byte & 1), at + 1
            else:
                numbers[field], at = _signed(data, at, end)
        elif kind == _BINARY:
            length, at = _varint(data, at, end)
            at += length
        elif kind == _STRUCT:
            structs[field], _, at = _struct(data, at, end, depth=depth + 1)
        elif kind not in _BOOLEANS:
            if kind not in _FIXED_BYTES:
                raise ValueError("page header has an unknown type of field")
            at += _FIXED_BYTES[kind]
    return numbers, structs, at + 1


def _byte(data: bytes, at: int, end: int) -> int:
    if at >= end:
        raise ValueError("page header leaves its column")
    return data[at]


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        byte = _byte(data, at + index, end)
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, at + index + 1
    raise ValueError("page header has an endless number")


def _signed(data: bytes, at: int, end: int) -> tuple[int, int]:
    value, at = _varint(data, at, end)
    return (value >> 1) ^ -(value & 1), at

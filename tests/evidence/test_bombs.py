"""Small inputs that would grow to gigabytes, or take minutes: refused before they do."""

import io
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.canonical import MAX_COMMAS, parse_json
from harness.errors import EvidenceError, HarnessError, InvalidInputError, PlanError
from harness.evidence import verify
from harness.evidence.declared import TABLES
from harness.evidence.pages import MAX_FOOTER_BYTES, check_bounds, check_footer
from harness.evidence.statement import MAX_RECORD_CELLS
from harness.evidence.store import Store
from harness.evidence.tables import (
    MAX_ROWS_BYTES,
    MAX_TABLE_CELLS,
    WrittenTable,
    decode,
    encode,
    inspect,
    rows_bytes,
)
from harness.plan.load import parse_plan
from harness.plan.manifest import MAX_LINES, parse_manifest


def varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def many_chunks(count: int) -> bytes:
    """A file whose footer names so many column chunks, three bytes each."""
    root = b"\x48\x01s\x15\x02\x00"  # a schema of one column: name, number of children
    column = b"\x15\x02\x25\x00\x18\x01x\x00"  # type, repetition, name
    groups = b"\x1c\x19\xfc" + varint(count) + b"\x26\x00\x00" * count + b"\x16\x00\x16\x00\x00"
    footer = b"\x15\x02\x19\x2c" + root + column + b"\x16\x00\x19" + groups + b"\x00"
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


def test_the_reader_takes_a_footer_of_many_chunks_for_one() -> None:
    # What is refused below is a file to the reader, and not just any bytes.
    assert pq.ParquetFile(io.BytesIO(many_chunks(1))).metadata.num_columns == 1


def test_a_footer_that_grows_is_refused_before_it_is_parsed() -> None:
    bomb = many_chunks(1_000_000)
    with pytest.raises(EvidenceError, match="footer of 3000"):
        decode("trials", bomb, where="bomb")
    assert_bounded(bomb, megabytes=400)


def assert_bounded(data: bytes, *, megabytes: int) -> None:
    """Decode in a process that may have no more memory than this, beyond its imports."""
    code = (
        "import resource, sys\n"
        "from harness.errors import EvidenceError\n"
        "from harness.evidence.tables import decode\n"
        "data = sys.stdin.buffer.read()\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        f"limit = used + ({megabytes} << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "try:\n    decode('trials', data, where='bomb')\n"
        "except EvidenceError as error:\n    assert 'alloc' not in str(error), error\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=data, timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("length", [MAX_FOOTER_BYTES + 1, 2**32 - 1, 100])
def test_a_footer_length_is_checked_against_the_limit_and_the_file(length: int) -> None:
    with pytest.raises(ValueError, match="footer"):
        check_footer(b"PAR1" + bytes(60) + struct.pack("<I", length) + b"PAR1")


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1PAR1", b"PAR1" + bytes(40)])
def test_a_file_without_a_footer_is_refused(data: bytes) -> None:
    with pytest.raises(EvidenceError, match="not a table"):
        inspect("trials", data, where="x")


def deep_footer(depth: int) -> bytes:
    schema = b"\x48\x01s\x15\x02\x00" * depth + b"\x15\x02\x25\x00\x18\x01x\x00"
    footer = b"\x15\x02\x19\xfc" + varint(depth + 1) + schema + b"\x16\x00\x19\x0c\x00"
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


def test_a_deeply_nested_schema_is_refused() -> None:
    for depth in (2, 1000, 150_000):
        with pytest.raises(EvidenceError):
            decode("trials", deep_footer(depth), where="x")


def compressed_rows(name: str, count: int) -> bytes:
    """Equal rows, which take almost no room in the file."""
    table = TABLES[name]
    values = {"string": "", "int64": 0, "double": 0.0, "list<element: int64>": [0]}
    columns = [
        pa.repeat(pa.scalar(None if f.nullable else values.get(str(f.type), [0]), f.type), count)
        for f in table.schema
    ]
    buffer = io.BytesIO()
    data = pa.Table.from_arrays(columns, schema=table.schema)
    pq.write_table(data, buffer, compression="zstd", store_schema=False, use_dictionary=False)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["facts", "steps", "tensors"])
def test_rows_that_would_take_far_more_memory_than_their_file_are_never_made(name: str) -> None:
    """Within the bounds of a file's bytes and values, and refused for what rows take as objects."""
    data = compressed_rows(name, MAX_TABLE_CELLS // 2 // len(TABLES[name].columns))
    assert len(data) < 60_000
    with pytest.raises(EvidenceError, match="bytes of memory"):
        inspect(name, data, where="bomb")
    with pytest.raises(EvidenceError, match="bytes of memory"):
        decode(name, data, where="bomb")


def test_the_bound_on_rows_is_above_what_they_take() -> None:
    """Wide characters, lists and numbers that no cache holds: the worst that rows can be."""
    count = 20_000
    row = {
        "materialization_id": "\U0001f600" + "x" * 40,
        "name": "\U0001f600" + "y" * 40,
        "point": "\U0001f600",
        "dtype": "\U0001f600",
        "shape": [1000, 1001],
        "bytes": 1 << 40,
        "digest": "\U0001f600" + "z" * 70,
    }
    data, _ = encode("tensors", [row] * count)
    table = pq.ParquetFile(io.BytesIO(data))
    found = check_bounds(table.metadata, data, max_bytes=1 << 30, max_cells=1 << 30)
    tracemalloc.start()
    rows = decode("tensors", data, where="x")
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rows) == count
    bound = rows_bytes(len(row), count, found.num_values, found.num_bytes)
    assert taken < bound < 3 * taken


def test_a_large_table_of_a_real_model_is_within_the_bound() -> None:
    """As many tensors as the largest checkpoints have, hashed at two points."""
    texts = sum(4 + length for length in (60, 60, 20, 8, 71))
    num_rows = 2 * 124_000
    needed = rows_bytes(7, num_rows, 8 * num_rows, num_rows * (texts + 24))
    assert needed < MAX_ROWS_BYTES


def test_rows_that_a_statement_does_not_announce_are_never_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = compressed_rows("facts", 1_000_000)
    assert len(data) < 40_000
    made: list[str] = []
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.read", lambda *_, **__: made.append("rows"))
    table = WrittenTable(
        name="facts",
        realization=0,
        digest=store.put_table(data),
        num_rows=1,
        size_bytes=len(data),
    )
    with pytest.raises(EvidenceError, match="another length"):
        store.read_table_rows(table)
    assert made == []


def test_a_record_announces_no_more_rows_than_an_audit_can_hold(
    store: Store, sample: ModuleType
) -> None:
    half = MAX_RECORD_CELLS // 4 + 1
    tables = [
        WrittenTable(
            name="facts",
            realization=number,
            digest=sample.digest("facts"),
            num_rows=half,
            size_bytes=100,
        )
        for number in (0, 1)
    ]
    predicate = sample.predicate(store, tables)
    with pytest.raises(EvidenceError, match="values in all"):
        sample.record_statement(predicate)
    assert sample.record_statement(sample.predicate(store, tables[:1]))


def test_a_table_that_many_statements_name_is_looked_into_once(
    store: Store, sample: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        sample.put_record(store, experiment=f"e{number}")
    looked: list[Any] = []
    real = verify.inspect

    def counted(name: str, data: bytes, *, where: str) -> int:
        looked.append((name, where))
        return real(name, data, where=where)

    monkeypatch.setattr(verify, "inspect", counted)
    assert verify.verify_store(store.root) == []
    assert len(looked) == len(set(looked)) == 4


@pytest.mark.parametrize(
    ("parse", "data", "error"),
    [
        (parse_json, b"[" + b"0," * (MAX_COMMAS + 1) + b"0]", InvalidInputError),
        (parse_manifest, b"{}\n" * (MAX_LINES + 1), PlanError),
        (parse_plan, b'{"schema":[' + b"0," * 1_000_001 + b"0]}", PlanError),
    ],
)
def test_a_document_of_too_many_values_is_refused_before_it_is_parsed(
    parse: Callable[..., Any],
    data: bytes,
    error: type[HarnessError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr("json.loads", never)
    with pytest.raises(error):
        parse(data, where="x")


def test_rows_of_row_groups_and_of_the_footer_agree(tmp_path: Path) -> None:
    data = compressed_rows("facts", 3)
    footer_rows = data.replace(b"\x16\x06\x19", b"\x16\x02\x19", 1)
    assert footer_rows != data
    assert pq.ParquetFile(io.BytesIO(footer_rows)).metadata.num_rows == 1
    with pytest.raises(EvidenceError, match="row groups hold 3 rows"):
        inspect("facts", footer_rows, where="x")

import io
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import EvidenceError
from harness.evidence import tables
from harness.evidence.declared import LABELS, TABLES
from harness.evidence.tables import decode, encode, inspect


def random_value(kind: str, source: random.Random) -> Any:
    if kind.endswith("?") and source.random() < 0.4:
        return None
    make: dict[str, Callable[[], Any]] = {
        "str": lambda: source.choice(["", "ascii", "ünï", "漢\U0001f600", "a\nb"]),
        "int": lambda: source.choice([0, -1, 2**63 - 1, -(2**63), 7]),
        "float": lambda: source.choice([0.0, -0.0, 1e300, float("inf"), 0.1]),
        "bool": lambda: source.random() < 0.5,
        "strs": lambda: ["x", ""][: source.randrange(3)],
        "ints": lambda: [1, 2, 3][: source.randrange(4)],
    }
    return make[kind.removesuffix("?")]()


def random_rows(name: str, count: int) -> list[dict[str, Any]]:
    source = random.Random(f"{name} {count}")
    columns = TABLES[name].columns
    return [{c: random_value(kind, source) for c, kind in columns.items()} for _ in range(count)]


def parquet(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **{"compression": "zstd", "store_schema": False, **options})
    return buffer.getvalue()


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("count", [0, 1, 9])
def test_rows_are_written_and_read_back(name: str, count: int) -> None:
    rows = random_rows(name, count)
    data, num_rows = encode(name, rows)
    assert num_rows == inspect(name, data, where="here") == count
    assert decode(name, data, where="here") == rows
    # pyarrow's own conversion of the same rows gives the same file.
    table = pa.Table.from_pylist(rows, schema=TABLES[name].schema)
    assert data == parquet(table, use_dictionary=False)


def test_pandas_reads_the_same_values(sample: ModuleType) -> None:
    rows = sample.step_rows()
    frame = pd.read_parquet(io.BytesIO(encode("steps", rows)[0]))
    assert frame.to_dict("records") == rows


def test_every_table_is_declared_consistently() -> None:
    for name, table in TABLES.items():
        assert name == table.name
        assert set(table.key) <= set(table.columns)
        assert table.kind in {"result", "telemetry"}
        assert not any(table.columns[column].endswith("?") for column in table.key)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("num_nan", "0"),
        ("num_nan", 1.0),
        ("num_nan", True),
        ("num_nan", 2**63),
        ("num_nan", None),
        ("plane_digest", b"bytes"),
        ("plane_digest", 7),
        ("plane_digest", "\ud800"),
        ("margin", "0.5"),
        ("margin", False),
    ],
)
def test_mistyped_values_are_refused_when_written(
    sample: ModuleType, column: str, value: object
) -> None:
    rows = sample.step_rows()
    rows[1][column] = value
    with pytest.raises(EvidenceError, match=column):
        encode("steps", rows)


@pytest.mark.parametrize("value", [[1, None], [1, "2"], 7, "12", None])
def test_mistyped_lists_are_refused_when_written(value: object) -> None:
    rows = random_rows("fetches", 1)
    rows[0]["shape"] = value
    with pytest.raises(EvidenceError, match="shape"):
        encode("fetches", rows)


def test_missing_and_unknown_columns_are_refused_when_written(sample: ModuleType) -> None:
    rows = sample.step_rows()
    with pytest.raises(EvidenceError, match="other columns"):
        encode("steps", [{**rows[0], "surplus": 1}])
    del rows[0]["num_nan"]
    with pytest.raises(EvidenceError, match="other columns"):
        encode("steps", rows)


def test_a_table_of_an_earlier_release_is_read_as_it_was_written() -> None:
    for name, table in TABLES.items():
        assert all(table.columns[column].endswith("?") for column in table.later)
        if not table.later:
            continue
        rows = random_rows(name, 3)
        whole = pq.read_table(io.BytesIO(encode(name, rows)[0]))

        def written(columns: list[str], whole: pa.Table = whole) -> bytes:
            buffer = io.BytesIO()
            pq.write_table(whole.select(columns), buffer, compression="zstd", use_dictionary=False)
            return buffer.getvalue()

        kept = [column for column in table.columns if column not in table.later]
        assert decode(name, written(kept), where="x") == [{k: r[k] for k in kept} for r in rows]
        # All of the later columns, or none of them.
        for column in sorted(table.later):
            with pytest.raises(EvidenceError, match="other columns"):
                decode(name, written([*kept, column]), where="x")


def test_parquet_with_other_columns_is_refused(sample: ModuleType) -> None:
    table = pa.Table.from_pylist(sample.step_rows(), schema=TABLES["steps"].schema)
    index = table.schema.get_field_index("num_nan")
    nullable = pa.field("num_nan", pa.int64(), nullable=True)
    short = pa.field("num_nan", pa.int32(), nullable=False)
    for changed in (
        table.drop_columns(["margin"]),
        table.append_column("surplus", pa.array([1, 2, 3])),
        table.select(table.schema.names[::-1]),
        table.rename_columns([*table.schema.names[:-1], "Margin"]),
        table.set_column(index, nullable, table.column("num_nan")),
        table.set_column(index, short, pa.array([0, 0, 0], pa.int32())),
    ):
        with pytest.raises(EvidenceError, match="other columns"):
            decode("steps", parquet(changed, use_dictionary=False), where="here")
    with pytest.raises(EvidenceError, match="other columns"):
        decode("states", parquet(table, use_dictionary=False), where="here")
    with pytest.raises(EvidenceError, match="unknown table"):
        decode("surprise", parquet(table), where="here")


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": True},
        {"use_dictionary": False, "column_encoding": {"name": "DELTA_BYTE_ARRAY"}},
        {"use_dictionary": False, "column_encoding": {"count": "DELTA_BINARY_PACKED"}},
        {"use_dictionary": False, "data_page_version": "2.0"},
    ],
)
def test_encodings_that_can_hide_their_size_are_refused(options: dict[str, Any]) -> None:
    rows = random_rows("sentinels", 50)
    data = parquet(pa.Table.from_pylist(rows, schema=TABLES["sentinels"].schema), **options)
    with pytest.raises(EvidenceError, match="not a table sentinels"):
        decode("sentinels", data, where="here")


def test_a_dictionary_is_refused_before_its_pages_are_looked_at() -> None:
    rows = random_rows("sentinels", 50)
    data = parquet(pa.Table.from_pylist(rows, schema=TABLES["sentinels"].schema))
    with pytest.raises(EvidenceError, match="has a dictionary"):
        inspect("sentinels", data, where="here")


def test_declared_sizes_beyond_the_limits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"name": "x" * 50_000, "version": "1"}] * 200
    data, _ = encode("distributions", rows)
    assert len(data) < 10_000
    monkeypatch.setattr(tables, "MAX_TABLE_BYTES", 9_000_000)
    with pytest.raises(EvidenceError, match="too large"):
        decode("distributions", data, where="here")
    monkeypatch.setattr(tables, "MAX_TABLE_BYTES", 11_000_000)
    assert len(decode("distributions", data, where="here")) == 200
    monkeypatch.setattr(tables, "MAX_TABLE_CELLS", 399)
    with pytest.raises(EvidenceError, match="too large"):
        inspect("distributions", data, where="here")


def test_pages_larger_than_the_footer_says_are_refused(sample: ModuleType) -> None:
    data, _ = encode("steps", sample.step_rows())
    column = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(0)
    # Page header: field 1 (page type, 0), field 2 (uncompressed size, a zigzag varint).
    start = column.data_page_offset
    assert data[start : start + 3] == b"\x15\x00\x15"
    changed = bytearray(data)
    changed[start + 3] += 2
    with pytest.raises(EvidenceError, match="the footer says"):
        inspect("steps", bytes(changed), where="here")


@pytest.mark.parametrize("cut", [0, 1, 4, 11, -1, -4, -8, -40])
def test_truncated_files_are_refused(sample: ModuleType, cut: int) -> None:
    data, _ = encode("steps", sample.step_rows())
    with pytest.raises(EvidenceError, match="not a table steps"):
        decode("steps", data[:cut], where="here")


def test_pickles_and_other_files_are_refused(sample: ModuleType) -> None:
    for data in (
        b"",
        pickle.dumps(sample.step_rows()),
        b"PAR1",
        b"PAR1" * 4,
        b"{}",
        b"\x00" * 4096,
    ):
        with pytest.raises(EvidenceError):
            decode("steps", data, where="here")


@pytest.mark.parametrize("value", [0x00, 0x7F, 0xFF])
def test_any_changed_byte_gives_rows_or_one_clear_error(value: int) -> None:
    data, _ = encode("distributions", random_rows("distributions", 5))
    num_refused = 0
    for index in range(len(data)):
        changed = data[:index] + bytes([value]) + data[index + 1 :]
        try:
            decode("distributions", changed, where="here")
        except EvidenceError:
            num_refused += 1
    assert num_refused > len(data) // 3


def test_evidence_needs_neither_torch_nor_pandas(repo_root: Path) -> None:
    code = (
        "import sys\n"
        "from harness.evidence import diff, listing, promote, source, verify\n"
        "from harness.evidence.tables import decode, encode\n"
        "rows = [{'name': 'a', 'version': '1'}]\n"
        "assert decode('distributions', encode('distributions', rows)[0], where='') == rows\n"
        "heavy = {'torch', 'pandas', 'hydra', 'transformers', 'triton', 'kernels', 'harness.plan',"
        " 'harness.reconcile'}\n"
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=repo_root, check=True, timeout=60)


def test_labels_are_of_declared_columns_and_of_known_kinds() -> None:
    columns = {f"{name}.{column}" for name, table in TABLES.items() for column in table.columns}
    assert LABELS.keys() <= columns
    assert set(LABELS.values()) <= {"calculated", "estimated", "declared"}
    assert TABLES["tensors"].label("digest") == "measured"
    assert TABLES["arenas"].label("declared_bytes") == "declared"

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.checkpoint.header import MAX_HEADER_BYTES, read_header
from harness.errors import CheckpointError, ExitCode

TORCH_NAMES = {
    "bool": "bool",
    "uint8": "uint8",
    "int8": "int8",
    "int16": "int16",
    "uint16": "uint16",
    "float16": "float16",
    "int32": "int32",
    "uint32": "uint32",
    "float32": "float32",
    "int64": "int64",
    "uint64": "uint64",
    "float64": "float64",
    "complex64": "complex64",
}
many = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def entry(begin: int, end: int, **changes: Any) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end], **changes}


@many
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=20).filter(lambda key: key != "__metadata__"),
        st.tuples(st.sampled_from(sorted(TORCH_NAMES)), st.lists(st.integers(0, 4), max_size=3)),
        max_size=6,
    )
)
def test_agrees_with_the_library(tmp_path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    arrays = {
        key: np.arange(int(np.prod(shape)), dtype="int64").astype(dtype).reshape(shape)
        for key, (dtype, shape) in tensors.items()
    }
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata={"format": "np"})
    header = read_header(path)
    assert header.metadata == {"format": "np"}
    assert header.size_bytes == path.stat().st_size
    assert header.entries.keys() == arrays.keys()
    data = path.read_bytes()[header.data_offset :]
    for key, array in arrays.items():
        found = header.entries[key]
        assert found.dtype == TORCH_NAMES[str(array.dtype)]
        assert found.shape == array.shape
        assert data[found.begin : found.end] == array.tobytes()
        assert found.num_bytes == array.nbytes


BROKEN: list[tuple[str, Any, bytes, str]] = [
    ("a hole", {"a": entry(0, 2), "b": entry(3, 4)}, b"....", "a hole [2, 3) lies before it"),
    ("a first hole", {"a": entry(1, 2)}, b"..", "a hole [0, 1) lies before it"),
    ("an overlap", {"a": entry(0, 3), "b": entry(2, 4)}, b"....", "overlaps the bytes before 3"),
    ("one inside", {"a": entry(0, 4), "b": entry(1, 2)}, b"....", "overlaps the bytes before 4"),
    ("the same range", {"a": entry(0, 2), "b": entry(0, 2)}, b"..", "overlaps the bytes before 2"),
    ("beyond the end", {"a": entry(0, 4)}, b"...", "leaves the 3 data bytes"),
    ("truncated", {"a": entry(0, 4)}, b"...", "truncated"),
    ("trailing", {"a": entry(0, 4)}, b".....", "trailing bytes"),
    ("trailing only", {}, b".", "trailing bytes"),
    ("reversed", {"a": entry(0, 2, data_offsets=[2, 0])}, b"..", "needs 2 bytes"),
    ("too few bytes", {"a": entry(0, 2, shape=[3])}, b"..", "needs 3 bytes"),
    ("a wider dtype", {"a": entry(0, 2, dtype="F32")}, b"..", "needs 8 bytes"),
    ("unknown dtype", {"a": entry(0, 2, dtype="F4")}, b"..", "unknown dtype 'F4'"),
    ("dtype of another kind", {"a": entry(0, 2, dtype=["U8"])}, b"..", "unknown dtype"),
    ("torch's name", {"a": entry(0, 2, dtype="uint8")}, b"..", "unknown dtype 'uint8'"),
    ("negative size", {"a": entry(0, 2, shape=[-1, -2])}, b"..", "shape is not a list"),
    ("boolean size", {"a": entry(0, 1, shape=[True])}, b".", "shape is not a list"),
    ("float size", {"a": entry(0, 2, shape=[2.0])}, b"..", "shape is not a list"),
    ("huge size", {"a": entry(0, 0, shape=[0, 2**60])}, b"", "shape is not a list"),
    ("no shape", {"a": entry(0, 2, shape=2)}, b"..", "shape is not a list"),
    ("one offset", {"a": entry(0, 2, data_offsets=[0])}, b"..", "not a pair of offsets"),
    ("negative offset", {"a": entry(0, 2, data_offsets=[-2, 0])}, b"..", "not a pair of offsets"),
    ("more fields", {"a": entry(0, 2, extra=1)}, b"..", "exactly dtype, shape and data_offsets"),
    ("fewer fields", {"a": {"dtype": "U8"}}, b"", "exactly dtype, shape and data_offsets"),
    ("a list", {"a": [0, 2]}, b"..", "exactly dtype, shape and data_offsets"),
    ("an empty key", {"": entry(0, 2)}, b"..", "not a usable key"),
    ("a lone surrogate", {"\ud800": entry(0, 2)}, b"..", "not a usable key"),
    ("metadata of numbers", {"__metadata__": {"a": 1}}, b"", "__metadata__"),
    ("metadata as text", {"__metadata__": "a"}, b"", "__metadata__"),
    (
        "a duplicate key",
        '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        '"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        b"..",
        "duplicate key 'a'",
    ),
    (
        "a duplicate field",
        '{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
        b".",
        "duplicate key 'dtype'",
    ),
    ("a list as header", "[1]", b"", "does not begin with {"),
    ("leading space", ' {"a":1}', b"", "does not begin with {"),
    ("unfinished", '{"a":', b"", "not JSON"),
    ("NaN", '{"a":NaN}', b"", "NaN is not JSON"),
    ("nested", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}", b"", "not JSON"),
    ("a long number", '{"a":' + "9" * 10_000 + "}", b"", "not JSON"),
    ("many values", '{"a":[' + "0," * 4_000_001 + "0]}", b"", "more than 4000000 values"),
]


@pytest.mark.parametrize(("name", "header", "data", "message"), BROKEN, ids=[b[0] for b in BROKEN])
def test_every_rule(write_raw: Any, name: str, header: Any, data: bytes, message: str) -> None:
    path = write_raw(header, data)
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == ExitCode.INVALID_INPUT


def test_a_tile_of_zero_bytes_is_no_hole(write_raw: Any) -> None:
    header = {"a": entry(0, 2), "z": entry(2, 2), "b": entry(2, 4), "y": entry(4, 4)}
    assert list(read_header(write_raw(header, b"....")).entries) == ["a", "z", "b", "y"]


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(struct.pack("<Q", 6) + b'{"\xff":1}'[:6])
    with pytest.raises(CheckpointError, match="not JSON"):
        read_header(path)


def test_all_problems_are_listed(write_raw: Any) -> None:
    header = {
        "a": entry(0, 2, dtype="X9"),
        "b": entry(2, 4, shape=[5]),
        "c": entry(4, 6, shape="no", data_offsets=[1]),
    }
    with pytest.raises(CheckpointError) as caught:
        read_header(write_raw(header, b"." * 6))
    text = str(caught.value)
    assert [text.count(part) for part in ("'X9'", "needs 5 bytes", "shape is", "a pair of")] == [
        1,
        1,
        1,
        1,
    ]


def test_holes_and_sizes_are_listed_together(write_raw: Any) -> None:
    header = {"a": entry(1, 3), "b": entry(5, 7, shape=[3]), "c": entry(6, 9)}
    with pytest.raises(CheckpointError) as caught:
        read_header(write_raw(header, b"." * 10))
    text = str(caught.value)
    for part in ("[0, 1)", "[3, 5)", "needs 3 bytes", "before 7", "describes 9 data bytes"):
        assert part in text


def test_a_hostile_list_of_problems_is_cut(write_raw: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_header(write_raw({f"k{i}": 0 for i in range(5000)}))
    assert "and 4900 more" in str(caught.value)
    assert len(str(caught.value)) < 20_000


def test_length_rules(tmp_path: Path, write_raw: Any) -> None:
    short = tmp_path / "short"
    short.write_bytes(b"1234567")
    for path, message in (
        (short, "7 bytes: too short"),
        (write_raw("{}", name="a", length=2**63), "more than 100000000 bytes"),
        (write_raw("{}", name="b", length=MAX_HEADER_BYTES + 1), "more than 100000000 bytes"),
        (write_raw("{}", name="c", length=3), "more than the file's 2 bytes"),
    ):
        with pytest.raises(CheckpointError, match="not a safetensors file") as caught:
            read_header(path)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git-lfs pointer"),
        (b"\n<!DOCTYPE html>\n<html>", "an HTML page"),
        (b"<HTML><body>404</body></HTML>", "an HTML page"),
        (b"PK\x03\x04" + b"\0" * 40, "a zip archive"),
        (b"\x80\x02}q\x00." + b"\0" * 40, "a pickle"),
        (b"GGUF" + b"\0" * 40, "a GGUF file"),
    ],
)
def test_foreign_files_are_named(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a safetensors file") as caught:
        read_header(path)
    assert kind in str(caught.value)
    assert "what to do" in str(caught.value)


def test_a_header_length_is_not_taken_for_a_magic_number(write_raw: Any) -> None:
    text = json.dumps({"a": entry(0, 2)})
    length = int.from_bytes(b"\x80\x02", "little")
    assert read_header(write_raw(text + " " * (length - len(text)), b"..")).entries.keys() == {"a"}


def test_only_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path, "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path / "none", "cannot open file"),
        (tmp_path / "a\0b", "cannot open file"),
    ):
        with pytest.raises(CheckpointError, match=message):
            read_header(path)


def test_a_forged_length_takes_no_memory(tmp_path: Path, write_raw: Any) -> None:
    path = write_raw("{", length=MAX_HEADER_BYTES)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_many_dimensions_take_no_time(write_raw: Any) -> None:
    header = {"a": entry(0, 1, shape=[2**50] * 1_000_000)}
    with pytest.raises(CheckpointError, match="at most 64 sizes"):
        read_header(write_raw(header, b"."))


@many
@given(st.data())
def test_what_is_accepted_the_library_accepts_too(tmp_path: Path, data: st.DataObject) -> None:
    arrays = {"a": np.arange(6, dtype="float32").reshape(2, 3), "b": np.ones(5, dtype="int8")}
    content = bytearray(safetensors.numpy.save(arrays))
    for _ in range(data.draw(st.integers(1, 3))):
        how = data.draw(st.sampled_from(["flip", "cut", "add", "digit"]))
        if how == "cut":
            del content[data.draw(st.integers(0, len(content))) :]
        elif how == "add":
            content += data.draw(st.binary(min_size=1, max_size=4))
        elif content and how == "flip":
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] ^= data.draw(st.integers(1, 255))
        elif digits := [i for i, byte in enumerate(content) if 48 <= byte < 58]:
            content[data.draw(st.sampled_from(digits))] = data.draw(st.integers(48, 57))
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    try:
        header = read_header(path)
    except CheckpointError:
        return
    with safetensors.safe_open(path, "np") as file:
        assert set(file.keys()) == header.entries.keys()
        for key in header.entries:
            assert tuple(file.get_slice(key).get_shape()) == header.entries[key].shape


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**64) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["dtype", "shape", "data_offsets", "a", "__metadata__"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@many
@given(json_values, st.binary(max_size=8))
def test_any_json_gives_a_header_or_one_error(write_raw: Any, value: Any, data: bytes) -> None:
    path = write_raw(json.dumps(value), data)
    try:
        header = read_header(path)
    except CheckpointError:
        return
    assert sum(entry.num_bytes for entry in header.entries.values()) == len(data)


@pytest.mark.slow
def test_the_largest_headers(tmp_path: Path) -> None:
    header = {f"model.layers.{i}.weight": entry(2 * i, 2 * i + 2) for i in range(124_000)}
    raw = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(248_000))
    assert len(read_header(path).entries) == 124_000

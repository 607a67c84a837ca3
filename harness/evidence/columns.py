"""Python values as Arrow columns, type by type.

Built from buffers: ``pyarrow.array`` imports pandas to look for its types, which costs every child
process a third of a second and its memory. Knows the column types of tables, no table.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

ARROW_TYPES: Mapping[str, pa.DataType] = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "strs": pa.list_(pa.string()),
    "ints": pa.list_(pa.int64()),
}
"""Arrow type of each column type."""


def column(kind: str, values: Sequence[Any]) -> "pa.Array[Any]":
    """One Arrow column of ``kind``; ``None`` is null.

    Raises:
        TypeError: When a value has another type.
        OverflowError: When an integer needs more than 64 bits, or the text more than 2 GiB.
        UnicodeEncodeError: When a text has no UTF-8 form.
    """
    kind_of_value, validity = ARROW_TYPES[kind], _validity(values)
    if kind in ("strs", "ints"):
        listed = [() if value is None else _checked(value, (list, tuple)) for value in values]
        items = column(kind.removesuffix("s"), [item for value in listed for item in value])
        if items.null_count:
            raise TypeError("a list holds nothing in one place")
        buffers = [validity, _offsets([len(value) for value in listed])]
        return pa.Array.from_buffers(kind_of_value, len(values), buffers, children=[items])
    if kind == "str":
        texts = ["" if value is None else _checked(value, str) for value in values]
        encoded = [text.encode("utf-8") for text in texts]
        buffers = [validity, _offsets(list(map(len, encoded))), pa.py_buffer(b"".join(encoded))]
    elif kind == "int":
        # numpy integers have an index too; a bool has one, and is not meant.
        numbers = [0 if value is None else _integer(value) for value in values]
        buffers = [validity, pa.py_buffer(array("q", numbers).tobytes())]
    elif kind == "float":
        floats = [
            0.0 if value is None else float(_checked(value, (float, int))) for value in values
        ]
        buffers = [validity, pa.py_buffer(array("d", floats).tobytes())]
    else:
        flags = [value is not None and _checked(value, bool) for value in values]
        buffers = [validity, _bits(flags)]
    return pa.Array.from_buffers(kind_of_value, len(values), buffers)


def _checked(value: Any, kinds: type | tuple[type, ...]) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise TypeError(f"{str(value)[:100]!r} is a {type(value).__name__}")
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{str(value)[:100]!r} is a {type(value).__name__}")
    return int(value.__index__())


def _offsets(lengths: Sequence[int]) -> pa.Buffer:
    return pa.py_buffer(array("i", accumulate(lengths, initial=0)).tobytes())


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    present = [value is not None for value in values]
    return None if all(present) else _bits(present)


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    packed = bytearray(-(-len(flags) // 8))
    for index, flag in enumerate(flags):
        packed[index >> 3] |= flag << (index & 7)
    return pa.py_buffer(bytes(packed))

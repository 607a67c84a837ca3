"""Reading a GGUF file: its metadata, and its tensors dequantized a block of rows at a time.

Weights are dequantized in float32 and rounded to bfloat16 (or kept in float32). The bytes follow
from the GGUF alone: every step is one correctly rounded operation on one element. Which tensors
there are, what they are called and what happens to their values is handed over; no model is known
here.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from harness.checkpoint.bfloat16 import to_bfloat16
from harness.checkpoint.writer import TensorToWrite
from harness.errors import CheckpointError

DTYPES = ("bfloat16", "float32")
MAX_COUNT = 1 << 20
"""Largest size that :func:`count` accepts: layers, features, heads, positions."""
_BLOCK_ELEMENTS = 1 << 20
_QUANT_TYPES = {"F32", "F16", "BF16"} | {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"} | {"Q4_K", "Q6_K"}
"""Whose dequantization is elementwise, so that it gives the same bits everywhere."""


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """An open GGUF file; its tensors' data stays on disk until it is asked for."""

    fields: Mapping[str, Any]
    """Metadata by name, plain values."""
    tensors: tuple[gguf.gguf_reader.ReaderTensor, ...]
    where: str

    @property
    def is_tied(self) -> bool:
        """Whether the file has no output matrix of its own."""
        return all(tensor.name != "output.weight" for tensor in self.tensors)


@dataclass(frozen=True, kw_only=True)
class Change:
    """What happens to one tensor on its way."""

    row_order: Callable[[], NDArray[np.int64]] | None = None
    """Gives the GGUF row of each row to write."""
    values: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None
    """Applied to dequantized values, before they are rounded."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The tensors that a model must consist of, and how GGUF's become them."""

    model: str
    """For messages."""
    shapes: Mapping[str, tuple[int, ...]]
    """Shape by HF key: exactly these must be there."""
    key: Callable[[str], str | None]
    """HF key of a GGUF name; ``None`` when the name is not known."""
    change: Callable[[str], Change]
    """By GGUF name."""


def open_gguf(path: Path) -> GgufFile:
    """Open a file, verified against its pinned digest.

    Raises:
        CheckpointError: When it is not readable GGUF.
    """
    try:
        reader = gguf.GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise CheckpointError(
            "not a readable GGUF file", got=str(error)[:200], where=path.name
        ) from error
    return GgufFile(fields=fields, tensors=tuple(reader.tensors), where=path.name)


def require_architecture(fields: Mapping[str, Any], name: str, model: str) -> None:
    """Refuse another model's file.

    Raises:
        CheckpointError: When ``general.architecture`` is not ``name``.
    """
    if fields["general.architecture"] != name:
        raise CheckpointError(
            f"this GGUF file is not a {model} model",
            expected=f"general.architecture {name}",
            got=str(fields["general.architecture"])[:80],
        )


def count(fields: Mapping[str, Any], name: str) -> int:
    """A metadata field that is a size.

    Raises:
        CheckpointError: When it is no number from 1 to ``MAX_COUNT``.
        KeyError: When it is missing.
    """
    value = fields[name]
    if type(value) is not int or not 0 < value <= MAX_COUNT:
        raise CheckpointError(
            f"GGUF field {name} is not a size", expected=f"1 to {MAX_COUNT}", got=repr(value)[:80]
        )
    return value


def shortest(value: float) -> float:
    """A float32 field as its shortest spelling: 1e-5, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def block_key(name: str, names: Mapping[str, str]) -> str | None:
    """HF key of ``blk.N.REST`` when ``names`` has ``REST``, else ``None``."""
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in names:
        return f"model.layers.{parts[1]}.{names[parts[2]]}"
    return None


def tensors_to_write(file: GgufFile, wanted: Wanted, *, dtype: str) -> dict[str, TensorToWrite]:
    """The tensors by HF key, each dequantized when its bytes are asked for.

    Raises:
        CheckpointError: When they are not exactly the wanted ones, with every problem.
    """
    tensors: dict[str, TensorToWrite] = {}
    problems = []
    for tensor in file.tensors:
        key = wanted.key(tensor.name)
        if key is None:
            problems.append(f"tensor {tensor.name} is not known")
        elif tensor.tensor_type.name not in _QUANT_TYPES:
            problems.append(f"tensor {tensor.name} is {tensor.tensor_type.name}")
        else:
            tensors[key] = _tensor(tensor, wanted.change(tensor.name), dtype)
    for key in sorted(wanted.shapes.keys() | tensors.keys()):
        if key not in tensors:
            problems.append(f"tensor {key} is missing")
        elif key not in wanted.shapes:
            problems.append(f"tensor {key} is unexpected")
        elif tensors[key].shape != wanted.shapes[key]:
            problems.append(f"tensor {key} is {tensors[key].shape}, not {wanted.shapes[key]}")
    if problems:
        raise CheckpointError(
            f"this GGUF file is not a plain {wanted.model} model",
            got="; ".join(problems[:20]),
            where=file.where,
        )
    return tensors


def _tensor(tensor: gguf.gguf_reader.ReaderTensor, change: Change, dtype: str) -> TensorToWrite:
    # GGUF lists dimensions fastest first.
    shape = tuple(int(size) for size in reversed(tensor.shape.tolist()))
    return TensorToWrite(
        dtype=dtype, shape=shape, pieces=lambda: _pieces(tensor, shape, change, dtype)
    )


def _pieces(
    tensor: gguf.gguf_reader.ReaderTensor, shape: tuple[int, ...], change: Change, dtype: str
) -> Iterator[bytes]:
    order = None if change.row_order is None else change.row_order()
    rows = tensor.data if len(shape) > 1 else tensor.data.reshape(1, -1)
    columns = shape[-1]
    step = max(_BLOCK_ELEMENTS // max(columns, 1), 1)
    for begin in range(0, math.prod(shape) // max(columns, 1), step):
        # Rows are quantized one by one, so reordering them first is exact and needs no whole copy.
        block = rows[begin : begin + step] if order is None else rows[order[begin : begin + step]]
        values = gguf.dequantize(block, tensor.tensor_type)
        if change.values is not None:
            values = change.values(values)
        if dtype == "bfloat16":
            yield to_bfloat16(values).tobytes()
        else:
            yield values.astype("<f4").tobytes()

"""A synthetic source: what a plan says of a made-up checkpoint, and making it in the cache.

Knows no family: which tensors a configuration asks for, the caller says. numpy is imported only
where numbers are made.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.checkpoint.cache import Progress, folder_name, obtain
from harness.checkpoint.census import census
from harness.checkpoint.large import require_room
from harness.errors import InvalidInputError
from harness.plan.layout import DTYPE_BYTES, SyntheticTensor

PLAIN = "shake256/1"
QUANTIZED = "shake256-quantized/1"
DTYPES = ("bfloat16", "float32")
"""Types of ordinary numbers."""
BYTE_DTYPES = ("uint8", "float8_e4m3fn")
"""Types that only the second generator makes."""
MAX_TOKENS = 1 << 24

Layers = tuple[int, int]
Tensors = Callable[[Mapping[str, Any], Layers | None], Mapping[str, SyntheticTensor]]
"""What a family's ``config.json`` asks for, of some layers or of all: tensor by key."""


def problems(source: Mapping[str, Any], *, has_family: bool) -> list[str]:
    """What is wrong with a source whose fields have the right types."""
    found = []
    config, generator, dtype = source["config"], source["generator"], dtype_of(source)
    if generator not in (PLAIN, QUANTIZED):
        found.append(f"generator {generator!r} is not {PLAIN} or {QUANTIZED}")
    if dtype not in DTYPES:
        found.append(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    named = _named_dtype(config)
    if named is not None and named != dtype:
        found.append(f"dtype {dtype!r} is not the configuration's {named!r}")
    num_tokens = _num_tokens(config)
    if type(num_tokens) is not int or not 0 < num_tokens <= MAX_TOKENS:
        found.append(f"vocab_size {num_tokens!r} is not a number of tokens")
    if "tensors" in source:
        _listed(source["tensors"], found)
        if "layers" in source:
            found.append("layers do not go with tensors")
    elif not has_family:
        found.append("tensors is missing, and the family gives none")
    layers = source.get("layers", [0, 1])
    if len(layers) != 2 or any(type(item) is not int for item in layers):
        found.append("layers is not [first, after the last]")
    return found


def fetch(
    source: Mapping[str, Any],
    cache: Path,
    tell: Progress,
    *,
    tensors: Tensors | None,
    allow_large: bool,
) -> Path:
    """Return the folder of a source without :func:`problems`, made when it is not there yet.

    Raises:
        InvalidInputError: When the generator does not make what the family asks for.
        LargeCheckpointError: When it is large, and may not be.
        NotEvaluableError: When there is no space.
    """
    wanted = _wanted(source, tensors)
    dtype, generator = dtype_of(source), source["generator"]
    identity = {**source, "dtype": dtype, "tensors": _rows(wanted, generator)}
    name = folder_name("synthetic", identity)
    if not (cache / name).is_dir():
        elements = ((t.dtype or dtype, math.prod(t.shape)) for t in wanted.values())
        num_bytes = sum(DTYPE_BYTES[stored] * count for stored, count in elements)
        require_room(num_bytes, cache, allow_large=allow_large)

    def make(folder: Path) -> None:
        from harness.checkpoint.synthetic import write_synthetic

        write_synthetic(
            folder,
            seed=source["seed"],
            config=source["config"],
            tensors=wanted,
            dtype=dtype,
            num_tokens=int(_num_tokens(source["config"])),
            generator=generator,
            progress=lambda fraction: tell("making random weights", fraction),
        )
        census(folder)

    return obtain(cache, name, source, make, progress=tell)


def dtype_of(source: Mapping[str, Any]) -> Any:
    """Type of the ordinary numbers of a source."""
    named = _named_dtype(source["config"])
    return source.get("dtype", named if named is not None else "bfloat16")


def _named_dtype(config: Mapping[str, Any]) -> Any:
    return config.get("torch_dtype", config.get("dtype"))


def _num_tokens(config: Mapping[str, Any]) -> Any:
    text = config.get("text_config", config)
    return text.get("vocab_size") if isinstance(text, Mapping) else None


def _wanted(source: Mapping[str, Any], tensors: Tensors | None) -> dict[str, SyntheticTensor]:
    if "tensors" in source:
        return _listed(source["tensors"], [])
    assert tensors is not None
    layers = (source["layers"][0], source["layers"][1]) if "layers" in source else None
    wanted = dict(tensors(source["config"], layers))
    made = (*DTYPES, *(BYTE_DTYPES if source["generator"] == QUANTIZED else ()))
    stored = {tensor.dtype for tensor in wanted.values() if tensor.dtype is not None}
    others = sorted(stored - set(made))
    if others:
        raise InvalidInputError(
            f"generator {source['generator']} does not make this model",
            expected=f"tensors of type {', '.join(made)}",
            got=", ".join(others),
            where="source.generator",
            hint=f"{QUANTIZED} makes {', '.join(BYTE_DTYPES)}",
        )
    return wanted


def _rows(wanted: Mapping[str, SyntheticTensor], generator: str) -> list[dict[str, Any]]:
    """All that the bytes of the tensors depend on, besides the source."""
    return [
        {"key": key, "shape": list(tensor.shape)}
        | (
            {"dtype": tensor.dtype, "bounds": list(tensor.bounds) if tensor.bounds else None}
            if generator == QUANTIZED
            else {}
        )
        for key, tensor in sorted(wanted.items())
    ]


def _listed(tensors: list[Any], found: list[str]) -> dict[str, SyntheticTensor]:
    listed: dict[str, SyntheticTensor] = {}
    for index, row in enumerate(tensors):
        key = row.get("key") if isinstance(row, dict) and row.keys() == {"key", "shape"} else None
        shape = row["shape"] if key is not None else None
        if (
            not isinstance(key, str)
            or not isinstance(shape, list)
            or not all(type(size) is int and 0 < size < 1 << 32 for size in shape)
        ):
            found.append(f"tensors[{index}] is not a key and a shape")
        elif key in listed:
            found.append(f"tensors[{index}] repeats {key!r}")
        else:
            listed[key] = SyntheticTensor(shape=tuple(shape))
    return listed

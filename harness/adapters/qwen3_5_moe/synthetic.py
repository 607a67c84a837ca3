"""Between which bounds the numbers of a made-up checkpoint of the family lie. Imports no torch.

The bounds keep activations of order one: a product with a weight of C columns keeps the size of
its input, norms multiply by about one, a recurrent state keeps half to nearly all of itself from
one token to the next, and the logits of a router differ by about one.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.plan.layout import SyntheticTensor

E4M3 = "float8_e4m3fn"
Bounds = tuple[float, float]

_ANY_E4M3: Bounds = (-448.0, 448.0)
"""Root mean square of evenly drawn bit patterns: 108."""
_BLOCK_SCALES: Bounds = (0.5, 1.875)
"""Root mean square, with that of evenly drawn packed codes: 3.4."""
_FP8_FACTOR: Bounds = (0.006, 0.012)
_PACKED_FACTOR: Bounds = (0.2, 0.4)
"""Both factors times the root of the columns, so that weights are about one over it."""
_INPUT_SCALE: Bounds = (0.0078125, 0.015625)
_LOG_DECAY: Bounds = (-3.0, 0.0)
_NEAR_ZERO: Bounds = (-0.125, 0.125)


def described(tensors: Mapping[str, SyntheticTensor]) -> dict[str, SyntheticTensor]:
    """The same tensors with their bounds, and an input scale beside each quantized module."""
    return dict(sorted(_described(tensors)))


def _described(tensors: Mapping[str, SyntheticTensor]) -> Iterator[tuple[str, SyntheticTensor]]:
    for key, tensor in tensors.items():
        yield key, replace(tensor, bounds=_bounds(key, tensor, tensors))
        module, _, kind = key.rpartition(".")
        if kind == "weight_scale":
            scale = SyntheticTensor(shape=(), dtype="float32", bounds=_INPUT_SCALE)
            yield f"{module}.input_scale", scale


def _bounds(
    key: str, tensor: SyntheticTensor, tensors: Mapping[str, SyntheticTensor]
) -> Bounds | None:
    module, _, kind = key.rpartition(".")
    if tensor.dtype == E4M3:
        return _BLOCK_SCALES if kind == "weight_scale" else _ANY_E4M3
    if kind in ("weight_scale", "weight_scale_2"):
        weight = tensors[f"{module}.weight"]
        low, high = _FP8_FACTOR if weight.dtype == E4M3 else _PACKED_FACTOR
        columns = weight.shape[1] * (1 if weight.dtype == E4M3 else 2)
        return low / math.sqrt(columns), high / math.sqrt(columns)
    if kind == "A_log":
        return _LOG_DECAY
    # Norms multiply by 1 + w, but for the one whose weights multiply as they are.
    is_vector = len(tensor.shape) == 1
    return _NEAR_ZERO if is_vector and not module.endswith("linear_attn.norm") else None

"""Bytewise snapshot and restore of declared state. Knows tensors by name and nothing else.

Names, dtypes and shapes do not always say what tensors mean: page size, window and policy may
differ between two states of equal shapes. A state to which that matters declares a tensor
``geometry`` that says it; two states whose ``geometry`` differs are not copied to each other. All
zeros there mean a copy that was never written, which may be written and not be read.
"""

from collections.abc import Mapping

import torch

from harness.errors import InvalidInputError
from harness.state.geometry import GEOMETRY


def copy_declared(source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]) -> None:
    """Copy every declared tensor's bytes from ``source`` to ``target``.

    Raises:
        InvalidInputError: When names, dtypes or shapes differ, or what ``geometry`` says; nothing
            has been copied then.
    """

    def geometry(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[object, ...]]:
        return {name: (t.dtype, tuple(t.shape)) for name, t in sorted(tensors.items())}

    if geometry(source) != geometry(target):
        _refuse(str(geometry(target)), str(geometry(source)))
    if GEOMETRY in source:
        ours, theirs = target[GEOMETRY].tolist(), source[GEOMETRY].tolist()
        if not any(theirs):
            _refuse(f"geometry {ours}", "a copy that was never written")
        if any(ours) and ours != theirs:
            _refuse(f"geometry {ours}", f"geometry {theirs}")
    for name, tensor in source.items():
        target[name].copy_(tensor)


def _refuse(expected: str, got: str) -> None:
    raise InvalidInputError(
        "a snapshot and its state have different geometry", expected=expected, got=got
    )

"""Bytewise snapshot and restore of declared state. Knows tensors by name and nothing else."""

from collections.abc import Mapping

import torch

from harness.errors import InvalidInputError


def copy_declared(source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]) -> None:
    """Copy every declared tensor's bytes from ``source`` to ``target``.

    Raises:
        InvalidInputError: When names, dtypes or shapes differ; nothing has been copied then.
    """

    def geometry(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[object, ...]]:
        return {name: (t.dtype, tuple(t.shape)) for name, t in sorted(tensors.items())}

    if geometry(source) != geometry(target):
        raise InvalidInputError(
            "a snapshot and its state have different geometry",
            expected=str(geometry(target)),
            got=str(geometry(source)),
        )
    for name, tensor in source.items():
        target[name].copy_(tensor)

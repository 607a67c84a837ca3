"""Digests and raw bytes of tensors. Knows no plan, no model and no store."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import torch

from harness.team import Team

_PIECE_BYTES = 16 << 20
_PIECE_ELEMENTS = 1 << 14
"""Torch wakes other threads for twice as many."""


def pieces(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """A tensor's elements in row-major order, cut so that torch works on the calling thread alone.

    A thread that it wakes goes on looking for work for milliseconds, on a core that the next step
    of a kernel set with threads of its own wants.
    """
    flat = tensor.reshape(-1)
    return [flat[at : at + _PIECE_ELEMENTS] for at in range(0, flat.numel(), _PIECE_ELEMENTS)]


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy; writable when the tensor is."""
    if not tensor.is_contiguous():
        raise ValueError("expected a contiguous tensor; make a contiguous copy first")
    flat: memoryview = _flat(tensor.detach()).numpy().data
    return flat


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def copy_rows(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy to contiguous rows of equal shape; to a device, the copy may still run afterwards.

    On the CPU the calling thread copies alone, and lets others run: they may be hashing.
    """
    if not (target.is_cpu and source.is_cpu):
        target.copy_(source, non_blocking=True)
    elif target.dtype is source.dtype and source.is_contiguous():
        np.copyto(_flat(target).numpy(), _flat(source).numpy())
    else:
        for into, piece in zip(pieces(target), pieces(source), strict=True):
            into.copy_(piece)


def tensor_digests(tensors: Iterable[torch.Tensor], team: Team) -> Iterator[str]:
    """:func:`tensor_digest` of each, in order, as many at a time as a team has threads.

    A device's tensors are hashed by the calling thread, to which the device belongs.
    """
    for is_cpu, alike in groupby(tensors, lambda tensor: tensor.is_cpu):
        if is_cpu:
            # Its threads see bytes only: torch would keep pages for each thread that calls it.
            yield from team.each(bytes_digest, (tensor_bytes(t.contiguous()) for t in alike))
        else:
            yield from map(tensor_digest, alike)


def bytes_digest(data: memoryview) -> str:
    """``sha256:<hex>`` of bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tensor_digest(tensor: torch.Tensor) -> str:
    """``sha256:<hex>`` of a tensor's bytes in row-major order (dtype and shape not included).

    A tensor on a device comes to the host piece by piece, and no copy of it stays.
    """
    whole = tensor.detach().contiguous()
    if whole.is_cpu:
        return bytes_digest(tensor_bytes(whole))
    sha256 = hashlib.sha256()
    flat = whole.reshape(-1).view(torch.uint8)
    for begin in range(0, flat.nbytes, _PIECE_BYTES):
        sha256.update(flat[begin : begin + _PIECE_BYTES].cpu().numpy().data)
    return "sha256:" + sha256.hexdigest()


def equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two CPU tensors of equal shape and dtype have equal bytes."""
    one, other = (each.detach().contiguous().reshape(-1) for each in (one, other))
    if one.nbytes <= _PIECE_ELEMENTS:
        return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    both = [tensor_bytes(each) for each in (one, other)]
    words = [np.frombuffer(each, dtype="u8" if each.nbytes % 8 == 0 else "u1") for each in both]
    return bool((words[0] == words[1]).all())


def count_non_finite(tensor: torch.Tensor) -> tuple[int, int]:
    """Number of NaN and of infinite elements."""
    # One pass decides the usual case of none: what is not finite leaves no sum finite.
    if _has_finite_sum(tensor):
        return 0, 0
    return int(torch.isnan(tensor).sum()), int(torch.isinf(tensor).sum())


def _has_finite_sum(tensor: torch.Tensor) -> bool:
    if tensor.is_cpu and tensor.dtype is torch.float32:  # in a third of torch's time
        with np.errstate(all="ignore"):
            return math.isfinite(tensor.detach().numpy().sum())
    return all(math.isfinite(float(piece.sum())) for piece in pieces(tensor))

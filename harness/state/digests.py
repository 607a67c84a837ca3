"""Digests and raw bytes of tensors. Knows no plan, no model and no store.

On a host all of it reads bytes and words through numpy and the C library, and what a step's
sentinels call works on the calling thread: they run when the step has just evicted everything, and
torch's operators are more code to fetch again, some of which wakes threads that the next step wants
the cores of.
"""

import ctypes
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import torch

from harness.team import Team

_PIECE_BYTES = 16 << 20
_PIECE_WORDS = 1 << 14
_WORDS: dict[torch.dtype, tuple[Any, Any, int]] = {
    torch.bfloat16: (np.dtype("u2"), np.uint16(0x7FFF), 0x7F80),
    torch.float16: (np.dtype("u2"), np.uint16(0x7FFF), 0x7C00),
    torch.float32: (np.dtype("u4"), np.uint32(0x7FFF_FFFF), 0x7F80_0000),
    torch.float64: (np.dtype("u8"), np.uint64(0x7FFF_FFFF_FFFF_FFFF), 0x7FF0_0000_0000_0000),
}
"""Of each float dtype the words that hold it, all but the sign, and infinity; NaNs are above it."""


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy; writable when the tensor is."""
    view: memoryview = _flat_bytes(tensor).data
    return view


def tensor_digests(tensors: Iterable[torch.Tensor], team: Team) -> Iterator[str]:
    """:func:`tensor_digest` of each, in order, as many at a time as a team has threads.

    A device's tensors are hashed by the calling thread, to which the device belongs. A strided one
    is copied until it was hashed.
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
    whole = tensor.contiguous()
    if whole.is_cpu:
        return bytes_digest(tensor_bytes(whole))
    sha256 = hashlib.sha256()
    flat = whole.detach().reshape(-1).view(torch.uint8)
    for begin in range(0, flat.nbytes, _PIECE_BYTES):
        sha256.update(flat[begin : begin + _PIECE_BYTES].cpu().numpy().data)
    return "sha256:" + sha256.hexdigest()


def equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors on the host have equal bytes.

    Raises:
        ValueError: For a tensor that is elsewhere.
    """
    if not (one.is_cpu and other.is_cpu):
        raise ValueError(f"expected tensors on the host, got {one.device} and {other.device}")
    if one.nbytes != other.nbytes:
        return False
    one, other = one.contiguous(), other.contiguous()
    return _memcmp()(one.data_ptr(), other.data_ptr(), one.nbytes) == 0


def count_non_finite(tensor: torch.Tensor) -> tuple[int, int]:
    """Number of NaN and of infinite elements."""
    # One pass decides the usual case of none.
    if tensor.is_cpu and tensor.dtype in _WORDS and _is_finite(tensor.contiguous()):
        return 0, 0
    return int(torch.isnan(tensor).sum()), int(torch.isinf(tensor).sum())


def _flat_bytes(tensor: torch.Tensor) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    if not tensor.is_contiguous():
        raise ValueError("expected a contiguous tensor; make a contiguous copy first")
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def _is_finite(tensor: torch.Tensor) -> bool:
    word, magnitude, infinity = _WORDS[tensor.dtype]
    words = _flat_bytes(tensor).view(word)
    pieces = (words[at : at + _PIECE_WORDS] for at in range(0, words.size, _PIECE_WORDS))
    return all(int((piece & magnitude).max()) < infinity for piece in pieces)


@functools.cache
def _memcmp() -> Callable[[int, int, int], int]:
    function = ctypes.CDLL(None).memcmp
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    compare: Callable[[int, int, int], int] = function
    return compare

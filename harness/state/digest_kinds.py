"""Digest functions by kind. Digests of different kinds are never compared.

Knows tensors only.
"""

import importlib
from collections.abc import Callable

import torch

from harness.errors import NotEvaluableError
from harness.state.digests import tensor_bytes, tensor_digest


def digest_function(kind: str) -> Callable[[torch.Tensor], str]:
    """The function that digests a tensor's bytes in row-major order.

    Args:
        kind: ``sha256``, or the faster ``xxh3-128``, which is no cryptographic digest.

    Raises:
        NotEvaluableError: When the kind is unknown, or its package is not installed.
    """
    if kind == "sha256":
        return tensor_digest
    if kind != "xxh3-128":
        raise NotEvaluableError("unknown kind of digest", expected="sha256, xxh3-128", got=kind)
    try:
        xxh3 = importlib.import_module("xxhash").xxh3_128_hexdigest
    except ImportError as error:
        raise NotEvaluableError(
            "digests of kind xxh3-128 need a package that is not installed",
            expected="xxhash",
            hint="install it, or use sha256",
        ) from error

    def digest(tensor: torch.Tensor) -> str:
        return f"xxh3-128:{xxh3(tensor_bytes(tensor.cpu().contiguous()))}"

    return digest

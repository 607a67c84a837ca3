"""Embedding lookup by kernel set."""

from typing import Protocol

import torch

from kernels.embedding import cpu, reference
from kernels.kernel_sets import (
    NATIVE_CPU,
    TORCH_CPU,
    TORCH_CPU_INVARIANT,
    TORCH_REFERENCE,
    choose,
    require,
)


class Embedding(Protocol):
    """An unchecked implementation."""

    def __call__(
        self, token_ids: torch.Tensor, weight: torch.Tensor, scale: float | None = None
    ) -> torch.Tensor:
        """Rows ``token_ids`` [R] of ``weight`` [V, H], times ``scale``; [R, H]."""


def select(kernel_set: str) -> Embedding:
    """The unchecked implementation in a kernel set, for callers that check once."""
    # Copies and single products have one result, however many rows there are.
    implementations: dict[str, Embedding] = {
        TORCH_CPU: cpu.embedding,
        TORCH_CPU_INVARIANT: cpu.embedding,
        NATIVE_CPU: cpu.embedding,
        TORCH_REFERENCE: reference.embedding,
    }
    return choose("embedding", kernel_set, implementations, _triton)


def _triton() -> Embedding:
    from kernels.embedding import kernel

    return kernel.embedding


def embedding(
    token_ids: torch.Tensor,
    weight: torch.Tensor,
    scale: float | None = None,
    *,
    kernel_set: str = TORCH_CPU,
) -> torch.Tensor:
    """Rows ``token_ids`` [R] (int64) of ``weight`` [V, H]; returns [R, H].

    A ``scale`` is rounded to the dtype of ``weight`` and multiplied.
    """
    implementation = select(kernel_set)
    require(
        token_ids.ndim == 1 and token_ids.dtype == torch.int64,
        "embedding",
        "token_ids [rows] of int64",
        (tuple(token_ids.shape), token_ids.dtype),
    )
    require(weight.ndim == 2, "embedding", "weight [vocabulary, hidden]", tuple(weight.shape))
    require(
        token_ids.device == weight.device,
        "embedding",
        f"token_ids on {weight.device}",
        token_ids.device,
    )
    if token_ids.numel():
        low, high = int(token_ids.min()), int(token_ids.max())
        require(
            low >= 0 and high < weight.shape[0],
            "embedding",
            f"token ids in [0, {weight.shape[0]})",
            (low, high),
        )
    return implementation(token_ids, weight, scale)

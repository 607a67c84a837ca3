"""Root-mean-square norm in C++. Shapes: R rows, N heads, H normed size."""

import torch

from kernels.native.calls import Flag, Kind, Op, Operand, operation
from kernels.native.library import run


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, unit_offset: bool = False
) -> torch.Tensor:
    """Norm of [R, ..., H] by [H] or nothing: float32 inside, rounded once to the dtype of ``x``."""
    return _norm(x.contiguous(), None, weight, eps, unit_offset)[0]


def add_rms_norm(
    x: torch.Tensor,
    added: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    unit_offset: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of ``x + added`` and that sum, rounded to their dtype before it is normed."""
    return _norm(x.contiguous(), added.contiguous(), weight, eps, unit_offset)


def _norm(
    x: torch.Tensor,
    added: torch.Tensor | None,
    weight: torch.Tensor | None,
    eps: float,
    unit_offset: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty_like(x)
    total = x if added is None else torch.empty_like(x)
    size = x.shape[-1]
    scale = None if weight is None else weight.contiguous()
    op = describe(
        x, scale, out, size, eps, x.dtype, unit_offset=unit_offset, added=added, total=total
    )
    run(op, 1, x.numel() // size)
    return out, total


def describe(
    x: Operand,
    weight: torch.Tensor | None,
    out: Operand,
    size: int,
    eps: float,
    dtype: torch.dtype,
    *,
    unit_offset: bool = False,
    added: Operand = None,
    total: Operand = None,
) -> Op:
    """The operation over rows of ``size``: ``x`` [R, H] to ``out``.

    With ``added``, ``total`` gets the rounded sum, and the norm is that of ``total``.
    """
    return operation(
        Kind.RMS_NORM,
        dtype,
        flags=Flag.UNIT_OFFSET if unit_offset else Flag.NONE,
        sizes=(1, size),
        operands=(x, weight, out, added, total),
        reals=(eps,),
    )

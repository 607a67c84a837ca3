"""Root-mean-square norm in Triton: one program per normed row.

R rows, N heads of a row, H normed size.

Bitwise: repeats; a row's bits depend on its values, H, the dtype and the weight alone, since one
program reads the whole row at once, by a binary and a load width that depend on H and the dtype.
With an addition, the result equals that of the norm of the rounded sum.
"""

from collections.abc import Iterator

import torch
import triton.language as tl

from kernels.configurations import RMS_NORM, padded
from kernels.device_code import (
    FLOATS,
    WIDE_BYTES,
    Variant,
    narrow,
    one_binary,
    placed_by_size,
    require_device,
    type_name,
    variant,
    widen,
)
from kernels.kernel_sets import require

OP = "rms_norm"
LARGEST = max(RMS_NORM)


@one_binary
def rms_norm_kernel(
    x,
    added,
    weight,
    total,
    out,
    eps,
    num_heads,
    x_row,
    x_head,
    added_row,
    added_head,
    SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``out = x / sqrt(mean(x^2) + eps) * w``, after ``total = x = x + added`` where asked for."""
    program = tl.program_id(0).to(tl.int64)
    row, head = program // num_heads, program % num_heads
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    source = tl.multiple_of(x + row * x_row + head * x_head, ALIGN)
    values = widen(tl.load(source + column, mask=inside, other=0.0))
    if HAS_ADDED:
        source = tl.multiple_of(added + row * added_row + head * added_head, ALIGN)
        values += widen(tl.load(source + column, mask=inside, other=0.0))
        rounded = narrow(values, total.dtype.element_ty)
        target = tl.multiple_of(total + program * SIZE, ALIGN)
        tl.store(target + column, rounded, mask=inside)
        values = widen(rounded)
    mean = tl.sum(values * values, axis=0) / SIZE
    normed = values * tl.math.rsqrt(mean + eps)
    if HAS_WEIGHT:
        factors = tl.multiple_of(weight + column, ALIGN)
        factor = widen(tl.load(factors, mask=inside, other=0.0))
        if UNIT_OFFSET:
            factor += 1.0
        normed = normed * factor
    target = tl.multiple_of(out + program * SIZE, ALIGN)
    tl.store(target + column, narrow(normed, out.dtype.element_ty), mask=inside)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, unit_offset: bool = False
) -> torch.Tensor:
    """Norm of [R, H] or [R, N, H] by [H] or nothing: float32 inside, rounded once."""
    return _launch(x, None, weight, eps, unit_offset)[0]


def add_rms_norm(
    x: torch.Tensor,
    added: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    unit_offset: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of ``x + added`` and that sum, rounded to their dtype before it is normed."""
    return _launch(x, added, weight, eps, unit_offset)


def _launch(
    x: torch.Tensor,
    added: torch.Tensor | None,
    weight: torch.Tensor | None,
    eps: float,
    unit_offset: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    size = x.shape[-1]
    require(1 <= size <= LARGEST, OP, f"a last axis of 1 to {LARGEST}", size)
    require_device(OP, x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = out if added is None else torch.empty_like(out)
    if x.numel() == 0:
        return out, total
    shape = (x.shape[0], x.numel() // (x.shape[0] * size), size)
    heads, align = placed_by_size(x.view(shape) if x.ndim == 2 else x)
    more = heads if added is None else placed_by_size(added.view(shape))[0]
    factors = heads if weight is None else placed_by_size(weight)[0]
    configuration = RMS_NORM[padded(size)]
    rms_norm_kernel[(shape[0] * shape[1],)](
        heads,
        more,
        factors,
        total,
        out,
        eps,
        shape[1],
        *heads.stride()[:2],
        *more.stride()[:2],
        SIZE=size,
        ALIGN=align,
        HAS_ADDED=added is not None,
        HAS_WEIGHT=weight is not None,
        UNIT_OFFSET=unit_offset,
        **configuration.blocks,
        num_warps=configuration.num_warps,
        num_stages=configuration.num_stages,
    )
    return out, total


def variants() -> Iterator[Variant]:
    """Every configuration at its full size; the other switches only leave operations out."""
    for dtype in FLOATS:
        name = type_name(dtype)
        pointers = " ".join(f"{p}:{name}" for p in ("x", "added", "weight", "total", "out"))
        for size, configuration in RMS_NORM.items():
            yield variant(
                f"{name} {size}",
                rms_norm_kernel,
                configuration,
                pointers,
                SIZE=size,
                ALIGN=WIDE_BYTES,
                HAS_ADDED=True,
                HAS_WEIGHT=True,
                UNIT_OFFSET=True,
            )

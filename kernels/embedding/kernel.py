"""Embedding lookup in Triton: one program per row and block of columns.

R rows, V vocabulary size, H hidden size.

Bitwise: equals the oracle and every CPU set: a copy, or one product rounded once.
"""

from collections.abc import Iterator

import torch
import triton.language as tl

from kernels.configurations import ELEMENTWISE
from kernels.device_code import (
    FLOATS,
    WIDE_BYTES,
    Variant,
    alignment,
    narrow,
    one_binary,
    require_device,
    type_name,
    variant,
    widen,
    with_dense_rows,
)

OP = "embedding"
_SHIPPED_SIZE = 8192


@one_binary
def embedding_kernel(
    token_ids,
    weight,
    out,
    scale,
    ids_stride,
    weight_row,
    SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy a row of the weight; ``scale`` is already rounded to its dtype."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    token = tl.load(token_ids + row * ids_stride)
    source = tl.multiple_of(weight + token * weight_row, ALIGN) + column
    values = tl.load(source, mask=inside, other=0.0)
    if HAS_SCALE:
        values = narrow(widen(values) * scale, out.dtype.element_ty)
    target = tl.multiple_of(out + row * SIZE, ALIGN) + column
    tl.store(target, values, mask=inside)


def embedding(
    token_ids: torch.Tensor, weight: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Rows ``token_ids`` [R] of ``weight`` [V, H], times ``scale``, as a new [R, H]."""
    require_device(OP, token_ids, weight)
    rows, size = token_ids.shape[0], weight.shape[1]
    out = torch.empty((rows, size), dtype=weight.dtype, device=weight.device)
    if out.numel() == 0:
        return out
    weight = with_dense_rows(weight)
    factor = 1.0 if scale is None else float(torch.tensor(scale).to(weight.dtype))
    embedding_kernel[(rows, -(-size // ELEMENTWISE.blocks["BLOCK"]))](
        token_ids,
        weight,
        out,
        factor,
        token_ids.stride(0),
        weight.stride(0),
        SIZE=size,
        ALIGN=alignment(weight, size=size),
        HAS_SCALE=scale is not None,
        **ELEMENTWISE.blocks,
        num_warps=ELEMENTWISE.num_warps,
        num_stages=ELEMENTWISE.num_stages,
    )
    return out


def variants() -> Iterator[Variant]:
    """Scaled and plain; sizes differ in their masks alone."""
    for dtype in FLOATS:
        name = type_name(dtype)
        for scaled in (False, True):
            yield variant(
                f"{name} {'scaled' if scaled else 'plain'}",
                embedding_kernel,
                ELEMENTWISE,
                f"token_ids:i64 weight:{name} out:{name}",
                SIZE=_SHIPPED_SIZE,
                ALIGN=WIDE_BYTES,
                HAS_SCALE=scaled,
            )

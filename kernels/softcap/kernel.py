"""Bounding of values by a hyperbolic tangent in Triton, in place.

Bitwise: repeats; an element's bits depend on that element and the cap alone. float32 inside,
rounded once (the CPU sets round after each operation).
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
    tanh,
    type_name,
    variant,
    widen,
)

OP = "softcap"
_SHIPPED_SIZE = 262144


@one_binary
def softcap_kernel(
    x,
    cap,
    x_row,
    x_column,
    SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    DENSE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Replace x by ``cap tanh(x / cap)``; each program its own block of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    if DENSE:
        place = tl.multiple_of(x + row * x_row, ALIGN) + column
    else:
        place = x + row * x_row + column * x_column
    values = widen(tl.load(place, mask=inside, other=0.0))
    bounded = tanh(values / cap) * cap
    tl.store(place, narrow(bounded, x.dtype.element_ty), mask=inside)


def softcap_(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Replace ``x`` [R, C] by ``cap tanh(x / cap)``."""
    require_device(OP, x)
    rows, size = x.shape
    if x.numel() == 0:
        return x
    dense = x.stride(1) == 1 or size == 1
    softcap_kernel[(rows, -(-size // ELEMENTWISE.blocks["BLOCK"]))](
        x,
        cap,
        *x.stride(),
        SIZE=size,
        ALIGN=alignment(x, size=size),
        DENSE=dense,
        **ELEMENTWISE.blocks,
        num_warps=ELEMENTWISE.num_warps,
        num_stages=ELEMENTWISE.num_stages,
    )
    return x


def variants() -> Iterator[Variant]:
    """Dense rows and strided ones; sizes differ in their masks alone."""
    for dtype in FLOATS:
        name = type_name(dtype)
        for dense, align in ((True, WIDE_BYTES), (False, dtype.itemsize)):
            yield variant(
                f"{name} {'dense' if dense else 'strided'}",
                softcap_kernel,
                ELEMENTWISE,
                f"x:{name}",
                SIZE=_SHIPPED_SIZE,
                ALIGN=align,
                DENSE=dense,
            )

"""A sigmoid gate in Triton: one program per row and block of columns.

R rows, N heads of a row, D head size.

Bitwise: repeats; an element's bits depend on its value and its gate alone. float32 inside, rounded
once.
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
    by_heads,
    narrow,
    one_binary,
    require_device,
    sigmoid,
    type_name,
    variant,
    widen,
    with_dense_rows,
)

OP = "sigmoid_gate"
_SHIPPED_HEADS, _SHIPPED_SIZE = 16, 256


@one_binary
def sigmoid_gate_kernel(
    x,
    gate,
    out,
    x_row,
    x_head,
    gate_row,
    gate_head,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``out = x * sigmoid(gate)``; COLUMNS is what the heads of a row hold together."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < COLUMNS
    head, place = column // SIZE, column % SIZE
    source = tl.multiple_of(x + row * x_row + head * x_head, ALIGN) + place
    value = widen(tl.load(source, mask=inside, other=0.0))
    source = tl.multiple_of(gate + row * gate_row + head * gate_head, ALIGN) + place
    factor = sigmoid(widen(tl.load(source, mask=inside, other=0.0)))
    target = tl.multiple_of(out + row * COLUMNS, ALIGN) + column
    tl.store(target, narrow(value * factor, out.dtype.element_ty), mask=inside)


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(gate)`` of [R, ...] each; the gate may be strided."""
    require_device(OP, x, gate)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    heads, gates = with_dense_rows(by_heads(x)), with_dense_rows(by_heads(gate))
    rows, num_heads, size = heads.shape
    columns = num_heads * size
    sigmoid_gate_kernel[(rows, -(-columns // ELEMENTWISE.blocks["BLOCK"]))](
        heads,
        gates,
        out,
        *heads.stride()[:2],
        *gates.stride()[:2],
        SIZE=size,
        COLUMNS=columns,
        ALIGN=alignment(heads, gates, size=size),
        **ELEMENTWISE.blocks,
        num_warps=ELEMENTWISE.num_warps,
        num_stages=ELEMENTWISE.num_stages,
    )
    return out


def variants() -> Iterator[Variant]:
    """Both dtypes; sizes differ in their masks alone."""
    for dtype in FLOATS:
        name = type_name(dtype)
        yield variant(
            name,
            sigmoid_gate_kernel,
            ELEMENTWISE,
            f"x:{name} gate:{name} out:{name}",
            SIZE=_SHIPPED_SIZE,
            COLUMNS=_SHIPPED_HEADS * _SHIPPED_SIZE,
            ALIGN=WIDE_BYTES,
        )

"""Gated activations in Triton: one program per row and block of columns.

R rows, I intermediate size.

Bitwise: repeats; an element's bits depend on its gate and its factor alone. float32 inside, rounded
once (the CPU sets round the activation too).
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
    sigmoid,
    tanh,
    type_name,
    variant,
    widen,
    with_dense_rows,
)

OP = "gated_activation"
SILU, GELU_TANH = "silu", "gelu_tanh"
_SHIPPED_SIZE = 8192


@one_binary
def gated_kernel(
    gate_up,
    out,
    gate_row,
    SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``out = activation(gate) * up``; gate in columns [0, SIZE), up in [SIZE, 2 SIZE)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    source = tl.multiple_of(gate_up + row * gate_row, ALIGN) + column
    gate = widen(tl.load(source, mask=inside, other=0.0))
    up = widen(tl.load(source + SIZE, mask=inside, other=0.0))
    if ACTIVATION == "silu":
        active = gate * sigmoid(gate)
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)  # sqrt(2 / pi)
        active = 0.5 * gate * (1.0 + tanh(inner))
    target = tl.multiple_of(out + row * SIZE, ALIGN) + column
    tl.store(target, narrow(active * up, out.dtype.element_ty), mask=inside)


def silu_gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of [R, 2 I], gate first, to [R, I]."""
    return _launch(gate_up, SILU)


def gelu_tanh_gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``gelu_tanh(gate) * up`` of [R, 2 I], gate first, to [R, I]."""
    return _launch(gate_up, GELU_TANH)


def _launch(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    require_device(OP, gate_up)
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel() == 0:
        return out
    gate_up = with_dense_rows(gate_up)
    gated_kernel[(rows, -(-size // ELEMENTWISE.blocks["BLOCK"]))](
        gate_up,
        out,
        gate_up.stride(0),
        SIZE=size,
        ALIGN=alignment(gate_up, size=size),
        ACTIVATION=activation,
        **ELEMENTWISE.blocks,
        num_warps=ELEMENTWISE.num_warps,
        num_stages=ELEMENTWISE.num_stages,
    )
    return out


def variants() -> Iterator[Variant]:
    """Both activations; sizes differ in their masks alone."""
    for dtype in FLOATS:
        name = type_name(dtype)
        for activation in (SILU, GELU_TANH):
            yield variant(
                f"{name} {activation}",
                gated_kernel,
                ELEMENTWISE,
                f"gate_up:{name} out:{name}",
                SIZE=_SHIPPED_SIZE,
                ALIGN=WIDE_BYTES,
                ACTIVATION=activation,
            )

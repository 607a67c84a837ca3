"""Root-mean-square norm with a silu gate in Triton: one program per normed row.

R rows, N heads of a row, D normed size.

Bitwise: repeats; a row's bits depend on its values, its gate, D, the dtype and the weight alone,
since one program reads the whole row at once, by a binary and a load width that depend on D and
the dtype.
"""

from collections.abc import Iterator

import torch
import triton.language as tl

from kernels.configurations import RMS_NORM, padded
from kernels.device_code import (
    FLOATS,
    WIDE_BYTES,
    Variant,
    by_heads,
    narrow,
    one_binary,
    placed_by_size,
    require_device,
    sigmoid,
    type_name,
    variant,
    widen,
)
from kernels.kernel_sets import require

OP = "gated_norm"
LARGEST = max(RMS_NORM)


@one_binary
def gated_norm_kernel(
    x,
    gate,
    weight,
    out,
    eps,
    num_heads,
    x_row,
    x_head,
    gate_row,
    gate_head,
    SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``out = x / sqrt(mean(x^2) + eps) * weight * silu(gate)``."""
    program = tl.program_id(0).to(tl.int64)
    row, head = program // num_heads, program % num_heads
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    source = tl.multiple_of(x + row * x_row + head * x_head, ALIGN)
    values = widen(tl.load(source + column, mask=inside, other=0.0))
    mean = tl.sum(values * values, axis=0) / SIZE
    factors = tl.multiple_of(weight + column, ALIGN)
    normed = values * tl.math.rsqrt(mean + eps) * widen(tl.load(factors, mask=inside, other=0.0))
    source = tl.multiple_of(gate + row * gate_row + head * gate_head, ALIGN)
    opening = widen(tl.load(source + column, mask=inside, other=0.0))
    gated = normed * (opening * sigmoid(opening))
    target = tl.multiple_of(out + program * SIZE, ALIGN)
    tl.store(target + column, narrow(gated, out.dtype.element_ty), mask=inside)


def gated_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Norm of [R, ..., D] by [D] times silu of a gate as large: float32, rounded once."""
    size = x.shape[-1]
    require(1 <= size <= LARGEST, OP, f"a last axis of 1 to {LARGEST}", size)
    require_device(OP, x, gate, weight)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    heads, align = placed_by_size(by_heads(x))
    gates, factors = placed_by_size(by_heads(gate))[0], placed_by_size(weight)[0]
    configuration = RMS_NORM[padded(size)]
    gated_norm_kernel[(out.numel() // size,)](
        heads,
        gates,
        factors,
        out,
        eps,
        heads.shape[1],
        *heads.stride()[:2],
        *gates.stride()[:2],
        SIZE=size,
        ALIGN=align,
        **configuration.blocks,
        num_warps=configuration.num_warps,
        num_stages=configuration.num_stages,
    )
    return out


def variants() -> Iterator[Variant]:
    """Every configuration at its full size."""
    for dtype in FLOATS:
        name = type_name(dtype)
        pointers = " ".join(f"{p}:{name}" for p in ("x", "gate", "weight", "out"))
        for size, configuration in RMS_NORM.items():
            yield variant(
                f"{name} {size}",
                gated_norm_kernel,
                configuration,
                pointers,
                SIZE=size,
                ALIGN=WIDE_BYTES,
            )

"""Linear projection by E4M3 weights in Triton: one program per tile of rows and outputs.

R rows, C columns, O output rows of the weight.

Bitwise: repeats; a row's bits depend on that row, the weight and its scales alone, as in
:mod:`kernels.linear.kernel`. Weights widen to bfloat16 without loss, so every product is exact,
and sums are float32; the scale multiplies the sum. A NaN code gives NaN in its output alone; an
infinity in a float32 row gives NaN.
"""

from collections.abc import Iterator

import torch
import triton.language as tl

from kernels.configurations import FP8_LINEAR
from kernels.device_code import (
    FLOATS,
    WIDE_BYTES,
    Variant,
    narrow,
    one_binary,
    placed_by_size,
    require_device,
    require_reachable,
    type_name,
    variant,
)
from kernels.linear.kernel import tile_sums

OP = "fp8_linear"
_SHIPPED_COLUMNS = 2048


@one_binary
def fp8_linear_kernel(
    x,
    weight,
    factors,
    out,
    num_rows,
    num_outputs,
    x_row,
    factor_stride,
    COLUMNS: tl.constexpr,
    X_ALIGN: tl.constexpr,
    WEIGHT_ALIGN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """``out = factors * (x weight^T)``: float32 sums, rounded once."""
    output = tl.program_id(0).to(tl.int64) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    row = tl.program_id(1).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    has_row, has_output = row < num_rows, output < num_outputs
    x_rows = tl.multiple_of(x + row[:, None] * x_row, [X_ALIGN, X_ALIGN])
    weight_rows = weight + output[None, :] * COLUMNS
    weight_rows = tl.multiple_of(weight_rows, [WEIGHT_ALIGN, WEIGHT_ALIGN])
    sums = tile_sums(x_rows, weight_rows, has_row, has_output, COLUMNS, BLOCK_COLUMNS)
    sums *= tl.load(factors + output * factor_stride, mask=has_output, other=0.0)[None, :]
    target = out + row[:, None] * num_outputs + output[None, :]
    mask = has_row[:, None] & has_output[None, :]
    tl.store(target, narrow(sums, out.dtype.element_ty), mask=mask)


def fp8_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``scale * sum(x * weight)`` of [R, C], E4M3 [O, C] and [O] or [1], rounded once to [R, O]."""
    require_device(OP, x, scale)
    require_reachable(OP, weight)
    rows, outputs = x.shape[0], weight.shape[0]
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    x, x_align = placed_by_size(x)
    weight, weight_align = placed_by_size(weight.view(torch.uint8))
    configuration = FP8_LINEAR[x.dtype, weight_align == WIDE_BYTES]
    blocks = configuration.blocks
    fp8_linear_kernel[(-(-outputs // blocks["BLOCK_OUTPUTS"]), -(-rows // blocks["BLOCK_ROWS"]))](
        x,
        weight,
        scale,
        out,
        rows,
        outputs,
        x.stride(0),
        0 if scale.shape[0] == 1 else scale.stride(0),
        COLUMNS=x.shape[1],
        X_ALIGN=x_align,
        WEIGHT_ALIGN=weight_align,
        **blocks,
        num_warps=configuration.num_warps,
        num_stages=configuration.num_stages,
    )
    return out


def variants() -> Iterator[Variant]:
    """Aligned columns and others; sizes differ in the length of a loop alone."""
    for dtype in FLOATS:
        name = type_name(dtype)
        for is_wide, columns in ((True, _SHIPPED_COLUMNS), (False, 578)):
            yield variant(
                f"{name} {columns}",
                fp8_linear_kernel,
                FP8_LINEAR[dtype, is_wide],
                f"x:{name} weight:u8 factors:fp32 out:{name}",
                COLUMNS=columns,
                X_ALIGN=WIDE_BYTES if is_wide else dtype.itemsize,
                WEIGHT_ALIGN=WIDE_BYTES if is_wide else 1,
            )

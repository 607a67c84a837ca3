"""Linear projection in Triton: one program per tile of rows and outputs.

R rows, C columns, O output rows of the weight.

Bitwise: repeats; a row's bits depend on that row and the weight alone: one tile shape for one row
and for many, and one program sums all columns of its outputs in ascending blocks. It assumes what
matrix units do: an element of a product depends on its row and column alone.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.configurations import LINEAR
from kernels.device_code import (
    FLOATS,
    WIDE_BYTES,
    Variant,
    dot,
    dot_exact,
    e4m3,
    narrow,
    one_binary,
    placed_by_size,
    require_device,
    type_name,
    variant,
    widen,
)

OP = "linear"
_SHIPPED_COLUMNS = 4096


@triton.jit
def tile_sums(
    x_rows, weight_rows, has_row, has_output, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
):
    """Float32 sums of a tile over all columns, by ascending blocks of them.

    ``x_rows`` [B, 1] and ``weight_rows`` [1, O] point to the first column of each row, which the
    masks ``has_row`` [B] and ``has_output`` [O] may withhold. Bytes of a weight are E4M3.
    """
    sums = tl.zeros([has_row.shape[0], has_output.shape[0]], tl.float32)
    for start in range(0, COLUMNS, BLOCK_COLUMNS):
        column = start + tl.arange(0, BLOCK_COLUMNS)
        inside = column < COLUMNS
        left = tl.load(x_rows + column[None, :], mask=has_row[:, None] & inside[None, :], other=0.0)
        right = tl.load(
            weight_rows + column[:, None], mask=has_output[None, :] & inside[:, None], other=0.0
        )
        if right.dtype == tl.uint8:
            sums += dot_exact(left, e4m3(right))
        else:
            sums += dot(left, right)
    return sums


@one_binary
def linear_kernel(
    x,
    weight,
    bias,
    out,
    num_rows,
    num_outputs,
    x_row,
    weight_row,
    bias_stride,
    COLUMNS: tl.constexpr,
    ALIGN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """``out = x weight^T + bias``: float32 sums, rounded once."""
    output = tl.program_id(0).to(tl.int64) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    row = tl.program_id(1).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    has_row, has_output = row < num_rows, output < num_outputs
    x_rows = tl.multiple_of(x + row[:, None] * x_row, [ALIGN, ALIGN])
    weight_rows = tl.multiple_of(weight + output[None, :] * weight_row, [ALIGN, ALIGN])
    sums = tile_sums(x_rows, weight_rows, has_row, has_output, COLUMNS, BLOCK_COLUMNS)
    if HAS_BIAS:
        offset = tl.load(bias + output * bias_stride, mask=has_output, other=0.0)
        sums += widen(offset)[None, :]
    target = out + row[:, None] * num_outputs + output[None, :]
    mask = has_row[:, None] & has_output[None, :]
    tl.store(target, narrow(sums, out.dtype.element_ty), mask=mask)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x weight^T + bias`` of [R, C] and [O, C]: float32 sums, rounded once to [R, O]."""
    require_device(OP, x, weight)
    rows, outputs = x.shape[0], weight.shape[0]
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    (x, align), (weight, _) = placed_by_size(x), placed_by_size(weight)
    configuration = LINEAR[x.dtype, align == WIDE_BYTES]
    blocks = configuration.blocks
    linear_kernel[(-(-outputs // blocks["BLOCK_OUTPUTS"]), -(-rows // blocks["BLOCK_ROWS"]))](
        x,
        weight,
        out if bias is None else bias,
        out,
        rows,
        outputs,
        x.stride(0),
        weight.stride(0),
        0 if bias is None else bias.stride(0),
        COLUMNS=x.shape[1],
        ALIGN=align,
        HAS_BIAS=bias is not None,
        **blocks,
        num_warps=configuration.num_warps,
        num_stages=configuration.num_stages,
    )
    return out


def variants() -> Iterator[Variant]:
    """Aligned columns and others; sizes differ in the length of a loop alone."""
    for dtype in FLOATS:
        name = type_name(dtype)
        pointers = f"x:{name} weight:{name} bias:{name} out:{name}"
        for align, columns in ((WIDE_BYTES, _SHIPPED_COLUMNS), (dtype.itemsize, 577)):
            yield variant(
                f"{name} {columns}",
                linear_kernel,
                LINEAR[dtype, align == WIDE_BYTES],
                pointers,
                COLUMNS=columns,
                ALIGN=align,
                HAS_BIAS=True,
            )
